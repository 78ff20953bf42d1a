"""What can be done on the page: what destroys asks first, and a rejection shows the broker's text."""

from __future__ import annotations

from typing import Any

from sbclient import clock
from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator.faults import WireFaultKind
from sbclient.message import ServiceBusMessage
from tests.page.conftest import Watch
from tests.page.served import Served
from tests.page.test_looking import expect, figure, link, open_entity

Page = Any


def rows(page: Page, panel: str = "messages") -> Any:
    return page.locator(f"#panel-{panel} .messages tbody tr")


class TestSend:
    def test_a_message_is_sent_with_all_its_attributes(self, page: Page, served: Served) -> None:
        served.queue("orders")
        open_entity(page, served, "orders")
        page.get_by_role("button", name="Send…").click()
        page.get_by_label("Body", exact=True).fill('{"order": 7}')
        page.get_by_label("Session id", exact=True).fill("customer 42")
        page.get_by_text("More properties").click()
        page.get_by_label("Subject").fill("new")
        page.get_by_label("Time to live in seconds").fill("600")
        page.get_by_role("button", name="Add a property").click()
        page.get_by_label("Name of the property").fill("priority")
        page.get_by_label("Value of the property").fill("5")
        page.get_by_label("Type of the property").select_option("number")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("#notices")).to_contain_text("Sent 1 message to orders.")
        expect(rows(page)).to_have_count(1)
        (sent,) = served.receive("orders")
        assert (bytes(sent), sent.session_id, sent.subject) == (b'{"order": 7}', "customer 42", "new")
        assert sent.time_to_live is not None
        assert sent.time_to_live.total_seconds() == 600
        assert sent.application_properties == {"priority": 5}

    def test_several_copies_can_be_scheduled(self, page: Page, served: Served) -> None:
        served.queue("orders")
        open_entity(page, served, "orders")
        page.get_by_role("button", name="Send…").click()
        page.get_by_label("How many").fill("3")
        page.get_by_label("Delay in seconds").fill("3600")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(figure(page, "scheduled")).to_have_text("3")
        expect(rows(page).first).to_contain_text("in 59 min")

    def test_an_error_is_shown_beside_its_field(self, page: Page, served: Served, watch: Watch) -> None:
        watch.allows_refusals = True
        served.queue("orders")
        open_entity(page, served, "orders")
        page.get_by_role("button", name="Send…").click()
        page.get_by_label("Session id", exact=True).fill("a")
        page.get_by_label("Partition key").fill("b")
        page.get_by_role("button", name="Send", exact=True).click()
        refusal = page.get_by_role("dialog").get_by_role("alert")
        expect(refusal).to_have_text("partition_key 'b' differs from session_id 'a': make them equal, or set only one")
        page.get_by_label("Partition key").fill("a")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert served.count("orders") == 1

    def test_a_fault_affects_sending_from_the_page(self, page: Page, served: Served, watch: Watch) -> None:
        watch.allows_refusals = True
        served.queue("orders")
        served.emulator.inject(Fault(FaultKind.DOWN))
        open_entity(page, served, "orders")
        page.get_by_role("button", name="Send…").click()
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("contoso refuses the connection")


class TestDeadLetters:
    def test_one_is_resubmitted(self, page: Page, served: Served) -> None:
        served.queue("orders")
        served.dead_letter("orders", ServiceBusMessage("plum"), ServiceBusMessage("pear"), reason="too odd")
        open_entity(page, served, "orders", "dead")
        expect(rows(page, "dead")).to_have_count(2)
        expect(rows(page, "dead").first).to_contain_text("too odd")
        rows(page, "dead").filter(has_text="plum").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Resubmit").click()
        expect(rows(page, "dead")).to_have_count(1)
        expect(figure(page, "active")).to_have_text("1")
        expect(figure(page, "dead")).to_have_text("1")
        assert [bytes(message) for message in served.receive("orders")] == [b"plum"]

    def test_all_are_resubmitted_after_a_question(self, page: Page, served: Served) -> None:
        served.queue("orders")
        served.dead_letter("orders", *(ServiceBusMessage(str(number)) for number in range(5)))
        open_entity(page, served, "orders", "dead")
        page.get_by_role("button", name="Resubmit all…").click()
        page.get_by_role("button", name="Cancel").click()
        assert served.count("orders/$DeadLetterQueue") == 5
        page.get_by_role("button", name="Resubmit all…").click()
        page.get_by_role("button", name="Resubmit all", exact=True).click()
        expect(page.locator("#notices")).to_contain_text("Resubmitted 5 messages.")
        assert served.count("orders") == 5

    def test_some_are_chosen_and_deleted(self, page: Page, served: Served) -> None:
        served.queue("orders")
        served.dead_letter("orders", *(ServiceBusMessage(str(number)) for number in range(3)))
        open_entity(page, served, "orders", "dead")
        page.get_by_label("Choose message 1", exact=True).check()
        page.get_by_label("Choose message 3", exact=True).check()
        expect(page.locator("#panel-dead .selection")).to_contain_text("2 chosen")
        page.locator("#panel-dead").get_by_role("button", name="Delete…").click()
        page.get_by_role("button", name="Delete 2 messages").click()
        expect(rows(page, "dead")).to_have_count(1)
        assert served.count("orders/$DeadLetterQueue") == 1


class TestPurge:
    def test_it_asks_and_says_how_much(self, page: Page, served: Served) -> None:
        served.queue("orders")
        served.send("orders", *(ServiceBusMessage("x") for _ in range(4)))
        served.dead_letter("orders", ServiceBusMessage("x"))
        open_entity(page, served, "orders")
        expect(figure(page, "dead")).to_have_text("1")
        page.get_by_role("button", name="Purge…").first.click()
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("5 messages will be deleted")
        expect(window.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        expect(window).to_have_count(0)
        assert served.count("orders") == 4
        page.get_by_role("button", name="Purge…").first.click()
        window.get_by_role("button", name="Purge").click()
        expect(page.locator("#notices")).to_contain_text("Purged 5 messages of orders.")
        expect(figure(page, "active")).to_have_text("0")
        assert served.count("orders") + served.count("orders/$DeadLetterQueue") == 0

    def test_a_whole_namespace(self, page: Page, served: Served) -> None:
        for path in ("a", "b"):
            served.queue(path)
            served.send(path, ServiceBusMessage("x"))
        page.goto(served.url)
        page.get_by_role("button", name="Purge…").click()
        page.get_by_role("button", name="Purge 2 messages").click()
        expect(link(page, "a").locator(".waiting")).to_have_text("0")
        assert served.count("a") + served.count("b") == 0

    def test_one_message(self, page: Page, served: Served) -> None:
        served.queue("orders")
        served.send("orders", ServiceBusMessage("keep"), ServiceBusMessage("drop"))
        open_entity(page, served, "orders")
        rows(page).filter(has_text="drop").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete…").click()
        page.get_by_role("button", name="Delete it").click()
        expect(rows(page)).to_have_count(1)
        assert [bytes(message) for message in served.receive("orders")] == [b"keep"]


class TestFaults:
    def test_a_fault_is_injected_into_a_fragment_and_healed(self, page: Page, served: Served) -> None:
        served.queue("orders", enable_partitioning=True)
        open_entity(page, served, "orders", "faults")
        fragment = page.locator(".fragment").nth(3)
        fragment.click()
        switch = page.locator("#panel-faults").get_by_role("switch", name="Down")
        expect(switch).to_have_attribute("aria-checked", "false")
        switch.click()
        expect(fragment.locator(".fragment-state")).to_have_text("down")
        expect(switch).to_have_attribute("aria-checked", "true")
        expect(page.locator(".view-head .state")).to_have_text("down, partly")
        host = served.emulator.context().host
        (fault,) = served.do(lambda: host.namespace.faults.active(clock.now()))
        assert (fault.kind, fault.entity_path, list(fault.fragments or ())) == (FaultKind.DOWN, "orders", [3])
        switch.click()
        expect(fragment.locator(".fragment-state")).to_have_text("")
        expect(page.locator(".view-head .state")).to_have_text("up")

    def test_each_switch_shows_as_a_state(self, page: Page, served: Served) -> None:
        served.queue("orders")
        open_entity(page, served, "orders", "faults")
        for name, word in (
            ("Slow", "slow"),  # from the least to the worst: the worst one that is thrown is shown
            ("Loses answers", "loses answers"),
            ("Busy", "busy"),
            ("Full", "full"),
            ("Detaches links", "failing"),
            ("Hangs", "hanging"),
            ("Down", "down"),
        ):
            page.get_by_role("switch", name=name).click()
            expect(page.locator(".view-head .state")).to_have_text(word)
        assert len(served.do(lambda: served.emulator.context().host.namespace.faults.active(0.0))) == 6

    def test_a_fault_may_have_a_duration_and_a_probability(self, page: Page, served: Served) -> None:
        served.queue("orders")
        open_entity(page, served, "orders", "faults")
        page.get_by_text("Limit the duration").click()
        page.get_by_label("Duration in seconds").fill("600")
        page.get_by_label("Probability in per cent").fill("50")
        page.get_by_role("switch", name="Slow").click()
        expect(page.locator("#panel-faults")).to_contain_text("50 %")
        host = served.emulator.context().host
        (fault,) = served.do(lambda: host.namespace.faults.active(clock.now()))
        assert (fault.probability, fault.latency_s) == (0.5, 2)
        assert 590 < fault.until_at - clock.now() <= 600

    def test_faults_of_a_namespace_are_injected_and_all_healed(self, page: Page, served: Served) -> None:
        served.queue("orders")
        page.goto(served.url)
        card = page.locator(".card").first
        card.get_by_text("Faults of the namespace").click()
        card.get_by_role("switch", name="Down").click()
        expect(card.locator(".about-namespace .state")).to_have_text("down")
        card.get_by_role("switch", name="Black hole").click()
        expect(card.get_by_role("switch", name="Black hole")).to_have_attribute("aria-checked", "true")
        (fault,) = served.do(lambda: served.emulator.context().wire_faults.active(0.0))
        assert fault.kind is WireFaultKind.BLACK_HOLE
        expect(page.locator(".activity")).to_contain_text("fault injected")
        card.get_by_role("button", name="Heal all").click()
        expect(card.locator(".about-namespace .state")).to_have_text("up")

    def test_a_fault_that_would_cut_off_the_page_asks_first(self, page: Page, served: Served, watch: Watch) -> None:
        served.queue("orders")
        page.goto(served.url_of("contoso"))
        card = page.locator(".card").first
        card.get_by_text("Faults of the namespace").click()
        card.get_by_role("switch", name="Resets connections").click()
        window = page.get_by_role("dialog")
        expect(window).to_contain_text(f"Open {served.url} to heal it")
        window.get_by_role("button", name="Cancel").click()
        assert served.do(lambda: served.emulator.context().wire_faults.active(0.0)) == []

    def test_faults_of_other_clients_are_listed_and_can_be_healed(self, page: Page, served: Served) -> None:
        served.queue("orders", enable_partitioning=True)
        served.emulator.inject(Fault(FaultKind.HANG, "orders", fragments=[4, 5]))
        open_entity(page, served, "orders", "faults")
        thrown = page.locator(".thrown li")
        expect(thrown).to_have_text(["hang: fragment 4, 5 of ordersHeal"])
        thrown.get_by_role("button", name="Heal").click()
        expect(page.locator(".view-head .state")).to_have_text("up")
