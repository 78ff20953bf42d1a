// Queues of JMS 2.0.

import jakarta.jms.*;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

public class JmsQueues extends Jms {
    public static void main(String[] args) throws Exception {
        run(args, Map.of(
            "queue", JmsQueues::queue, "selector", JmsQueues::selector, "delay", JmsQueues::delay,
            "transacted", JmsQueues::transacted, "browser", JmsQueues::browser, "temporary", JmsQueues::temporary));
    }

    static void queue(Connection connection, Session session) throws Exception {
        send(session, session.createQueue("queue"), "a", "b");
        equal(received(session, "queue"), "a", "b");
    }

    static void selector(Connection connection, Session session) throws Exception {
        Queue queue = session.createQueue("selector");
        MessageProducer producer = session.createProducer(queue);
        for (int i = 0; i < 10; i++) {
            Message message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("number", i);
            producer.send(message);
        }
        equal(all(session.createConsumer(queue, "number >= 5 AND JMSCorrelationID IS NULL")), "5", "6", "7", "8", "9");
        equal(all(session.createConsumer(queue)), "0", "1", "2", "3", "4");
    }

    static void delay(Connection connection, Session session) throws Exception {
        MessageProducer producer = session.createProducer(session.createQueue("delay"));
        producer.setDeliveryDelay(2_000);
        long began = System.currentTimeMillis();
        producer.send(session.createTextMessage("later"));
        producer.close();
        equal(received(session, "delay"), "later");
        if (System.currentTimeMillis() - began < 1_900) {
            throw new AssertionError("not delayed");
        }
    }

    static void transacted(Connection connection, Session session) throws Exception {
        send(session, session.createQueue("transacted"), "x");
        session.commit();
        MessageConsumer consumer = session.createConsumer(session.createQueue("transacted"));
        MessageProducer producer = session.createProducer(session.createQueue("moved"));
        for (boolean isCommitted : new boolean[] {false, true}) {
            TextMessage message = (TextMessage) consumer.receive(PATIENCE);
            producer.send(session.createTextMessage(message.getText()));
            if (isCommitted) {
                session.commit();
            } else {
                session.rollback();
            }
        }
        try (Connection other = connected("reader")) {
            Session plain = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
            equal(received(plain, "moved"), "x");
            equal(all(plain.createConsumer(plain.createQueue("transacted"))));
        }
    }

    static void browser(Connection connection, Session session) throws Exception {
        Queue queue = session.createQueue("browser");
        send(session, queue, "a", "b");
        List<String> bodies = new ArrayList<>();
        for (Object each : Collections.list(session.createBrowser(queue).getEnumeration())) {
            bodies.add(((TextMessage) each).getText());
        }
        equal(bodies, "a", "b");
        equal(received(session, "browser"), "a", "b");
    }

    static void temporary(Connection connection, Session session) throws Exception {
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(replies);
        Message request = session.createTextMessage("request");
        request.setJMSReplyTo(replies);
        session.createProducer(session.createQueue("requests")).send(request);
        try (Connection other = connected("server")) {
            Session server = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Message taken = server.createConsumer(server.createQueue("requests")).receive(PATIENCE);
            server.createProducer(taken.getJMSReplyTo()).send(server.createTextMessage("reply"));
        }
        equal(all(consumer), "reply");
        consumer.close();
        replies.delete();
    }
}
