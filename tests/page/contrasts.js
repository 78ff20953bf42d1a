// Every text on the screen whose contrast with what is behind it is too low: 4.5 to 1, or 3 to 1 for large text.
() => {
    const parse = (text) => {
        const parts = text.match(/[\d.]+/g).map(Number);
        return [parts[0], parts[1], parts[2], parts[3] ?? 1];
    };
    const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
    const light = (colour) => {
        const [r, g, b] = colour.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const groundOf = (element) => {
        const grounds = [];
        for (let at = element; at; at = at.parentElement) {
            const ground = parse(getComputedStyle(at).backgroundColor);
            grounds.push(ground);
            if (ground[3] === 1) break;
        }
        return grounds.reverse().reduce((below, ground) => over(ground, below), [255, 255, 255]);
    };
    const underPicture = (element, [x, y]) => {
        const shape = document.elementsFromPoint(x, y).find((each) => each.tagName === "rect");
        const fill = shape ? getComputedStyle(shape).fill : "none";
        return fill.startsWith("rgb") ? parse(fill).slice(0, 3) : groundOf(element.ownerSVGElement.parentElement);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.textContent.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const box = range.getBoundingClientRect();
        if (!box.width || element.closest(".hearable, script, title, :disabled")) continue;
        const style = getComputedStyle(element);
        const isPicture = element instanceof SVGElement;
        const ground = isPicture ? underPicture(element, [box.x + 2, box.y + box.height / 2]) : groundOf(element);
        const ink = over(parse(isPicture ? style.fill : style.color), ground);
        const [a, b] = [light(ink), light(ground)];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const size = parseFloat(style.fontSize);
        const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        if (contrast < (isLarge ? 3 : 4.5)) found.push(`${node.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
    }
    return found;
}
