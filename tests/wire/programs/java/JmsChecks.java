// Checks of JMS 2.0, one line each: "ok <check>" or "failed <check> <why>". For azure-servicebus-jms, which is older,
// the package jakarta.jms is replaced by javax.jms before this is compiled.

import jakarta.jms.*;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

public class JmsChecks {
    static final long PATIENCE = 20_000;
    static final long BRIEF = 500;
    static ConnectionFactory factory;

    interface Check {
        void run(Connection connection, Session session) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        factory = factory(args[0], args[1]);
        for (int i = 2; i < args.length; i++) {
            String name = args[i];
            try (Connection connection = connected("client-" + name)) {
                boolean isTransacted = name.equals("transacted");
                Session session = connection.createSession(
                    isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
                ((Check) check(name)).run(connection, session);
                System.out.println("ok " + name);
            } catch (Throwable error) {
                System.out.println("failed " + name + " " + String.valueOf(error).replace("\n", " | "));
                error.printStackTrace();
            }
        }
        System.exit(0);
    }

    static ConnectionFactory factory(String library, String address) throws Exception {
        if (library.equals("qpid")) {
            return (ConnectionFactory) Class.forName("org.apache.qpid.jms.JmsConnectionFactory")
                .getConstructor(String.class, String.class, String.class)
                .newInstance("RootManageSharedAccessKey", "SAS_KEY_VALUE", address);
        }
        Class<?> type = Class.forName("com.microsoft.azure.servicebus.jms.ServiceBusJmsConnectionFactorySettings");
        Object settings = type.getConstructor().newInstance();
        type.getMethod("setShouldReconnect", boolean.class).invoke(settings, false); // or it tries for ever
        return (ConnectionFactory) Class.forName("com.microsoft.azure.servicebus.jms.ServiceBusJmsConnectionFactory")
            .getConstructor(String.class, type).newInstance(address, settings);
    }

    static Connection connected(String client) throws Exception {
        Connection connection = factory.createConnection();
        connection.setClientID(client);
        connection.start();
        return connection;
    }

    static Check check(String name) {
        switch (name) {
            case "queue": return (c, s) -> { send(s, s.createQueue("queue"), "a", "b"); equal(received(s, "queue"), "a", "b"); };
            case "topic": return JmsChecks::topic;
            case "durable": return JmsChecks::durable;
            case "existing": return JmsChecks::existing;
            case "shared": return JmsChecks::shared;
            case "selector": return JmsChecks::selector;
            case "delay": return JmsChecks::delay;
            case "transacted": return JmsChecks::transacted;
            case "browser": return JmsChecks::browser;
            case "temporary": return JmsChecks::temporary;
            default: throw new IllegalArgumentException(name);
        }
    }

    static void topic(Connection connection, Session session) throws Exception {
        Topic topic = session.createTopic("topic");
        MessageConsumer first = session.createConsumer(topic), red = session.createConsumer(topic, "color = 'red'");
        MessageProducer producer = session.createProducer(topic);
        for (String color : new String[] {"red", "blue"}) {
            Message message = session.createTextMessage(color);
            message.setStringProperty("color", color);
            producer.send(message);
        }
        equal(all(first), "red", "blue");
        equal(all(red), "red");
    }

    static void durable(Connection connection, Session session) throws Exception {
        Topic topic = session.createTopic("topic");
        session.createDurableConsumer(topic, "mine").close();
        send(session, topic, "while away");
        MessageConsumer again = session.createDurableConsumer(topic, "mine");
        equal(all(again), "while away");
        again.close();
        session.unsubscribe("mine");
        send(session, topic, "lost");
        MessageConsumer fresh = session.createDurableConsumer(topic, "mine");
        equal(all(fresh));
        fresh.close();
        session.unsubscribe("mine");
    }

    static void existing(Connection connection, Session session) throws Exception {
        Topic topic = session.createTopic("topic");
        send(session, topic, "for the subscription");
        List<String> bodies = all(session.createDurableConsumer(topic, "existing"));
        if (!bodies.contains("for the subscription")) {
            throw new AssertionError(bodies.toString());
        }
    }

    static void shared(Connection connection, Session session) throws Exception {
        Topic topic = session.createTopic("topic");
        for (boolean isDurable : new boolean[] {false, true}) {
            MessageConsumer one = isDurable
                ? session.createSharedDurableConsumer(topic, "team") : session.createSharedConsumer(topic, "crew");
            MessageConsumer other = isDurable
                ? session.createSharedDurableConsumer(topic, "team") : session.createSharedConsumer(topic, "crew");
            send(session, topic, "a", "b");
            List<String> bodies = new ArrayList<>();
            bodies.add(((TextMessage) one.receive(PATIENCE)).getText());
            bodies.add(((TextMessage) other.receive(PATIENCE)).getText());
            Collections.sort(bodies);
            equal(bodies, "a", "b");
            one.close();
            other.close();
        }
        session.unsubscribe("team");
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

    static void send(Session session, Destination to, String... texts) throws Exception {
        try (MessageProducer producer = session.createProducer(to)) {
            for (String text : texts) {
                producer.send(session.createTextMessage(text));
            }
        }
    }

    static List<String> received(Session session, String queue) throws Exception {
        try (MessageConsumer consumer = session.createConsumer(session.createQueue(queue))) {
            return all(consumer);
        }
    }

    /** Wait long for a first message, where one is expected, and briefly for the others. */
    static List<String> all(MessageConsumer consumer) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (Message message = consumer.receive(3_000); message != null; message = consumer.receive(BRIEF)) {
            bodies.add(((TextMessage) message).getText());
        }
        return bodies;
    }

    static void equal(List<String> found, String... expected) {
        if (!found.equals(List.of(expected))) {
            throw new AssertionError(found + " instead of " + List.of(expected));
        }
    }
}
