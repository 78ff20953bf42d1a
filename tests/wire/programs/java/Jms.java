// Runs checks of JMS 2.0 and prints one line for each: "ok <check>" or "failed <check> <why>". For
// azure-servicebus-jms, which is older, the package jakarta.jms is replaced by javax.jms before this is compiled.

import jakarta.jms.*;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

class Jms {
    static final long PATIENCE = 20_000;
    static final long BRIEF = 500;
    static ConnectionFactory factory;

    interface Check {
        void run(Connection connection, Session session) throws Exception;
    }

    /** The arguments are the library, the address, and the names of checks. */
    static void run(String[] args, Map<String, Check> checks) throws Exception {
        factory = factory(args[0], args[1]);
        for (String name : List.of(args).subList(2, args.length)) {
            try (Connection connection = connected("client-" + name)) {
                boolean isTransacted = name.equals("transacted");
                Session session = connection.createSession(
                    isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
                checks.get(name).run(connection, session);
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
