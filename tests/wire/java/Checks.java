// azure-messaging-servicebus against the emulator: one line "ok <check>" or "failed <check> <why>" each.
//
// Usage: java Checks <connection string> <port> <plain|tls|websocket> <check>...
//
// The line "outage" asks the caller to reset all connections; the caller answers with a line.

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.util.IterableStream;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URL;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

public final class Checks {
    private static final Duration PATIENCE = Duration.ofSeconds(15);
    private static final Duration BRIEF = Duration.ofMillis(700);

    private final String connectionString;
    private final int port;
    private final String mode;

    private Checks(String connectionString, String port, String mode) {
        this.connectionString = connectionString;
        this.port = Integer.parseInt(port);
        this.mode = mode;
    }

    private interface Check {
        void run() throws Exception;
    }

    public static void main(String[] arguments) {
        Checks checks = new Checks(arguments[0], arguments[1], arguments[2]);
        Map<String, Check> all = new LinkedHashMap<>();
        all.put("messages", checks::messages);
        all.put("processor", checks::processor);
        all.put("refusals", checks::refusals);
        all.put("sessions", checks::sessions);
        all.put("one-entity", checks::oneEntity);
        all.put("schedule", checks::schedule);
        all.put("two-entities", checks::twoEntities);
        all.put("subscription", checks::subscription);
        all.put("partitioned", checks::partitioned);
        all.put("second-receiver", checks::secondReceiver);
        all.put("rules", checks::rules);
        all.put("administration", checks::administration);
        all.put("outage", checks::outage);
        List<String> names = new ArrayList<>(Arrays.asList(arguments).subList(3, arguments.length));
        for (String name : names.isEmpty() ? all.keySet() : names) {
            try {
                all.get(name).run();
                System.out.println("ok " + name);
            } catch (Throwable error) {
                StringBuilder why = new StringBuilder(String.valueOf(error));
                for (StackTraceElement place : error.getStackTrace()) {
                    if (place.getClassName().startsWith("Checks")) {
                        why.append(" | ").append(place);
                    }
                }
                System.out.println("failed " + name + " " + why.toString().replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    // The client takes the port from the custom endpoint, and leaves out TLS with UseDevelopmentEmulator.
    private ServiceBusClientBuilder client() {
        return client(0);
    }

    private ServiceBusClientBuilder client(int retries) {
        AmqpRetryOptions retryOptions = new AmqpRetryOptions().setMaxRetries(retries)
            .setTryTimeout(Duration.ofSeconds(20));
        return new ServiceBusClientBuilder()
            .connectionString(connectionString + (mode.equals("plain") ? ";UseDevelopmentEmulator=true" : ""))
            .customEndpointAddress("https://localhost:" + port)
            .transportType(mode.equals("websocket") ? AmqpTransportType.AMQP_WEB_SOCKETS : AmqpTransportType.AMQP)
            .retryOptions(retryOptions);
    }

    // The client has no option for the port.
    private ServiceBusAdministrationClient administrator() {
        return new ServiceBusAdministrationClientBuilder()
            .connectionString(connectionString)
            .addPolicy((context, next) -> {
                URL url = context.getHttpRequest().getUrl();
                try {
                    context.getHttpRequest().setUrl(new URL("https", "localhost", port, url.getFile()));
                } catch (java.net.MalformedURLException error) {
                    throw new IllegalStateException(error);
                }
                return next.process();
            })
            .buildClient();
    }

    private static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static List<ServiceBusReceivedMessage> received(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> messages = new ArrayList<>();
        while (messages.size() < count) {
            IterableStream<ServiceBusReceivedMessage> some = receiver.receiveMessages(count - messages.size(), PATIENCE);
            int before = messages.size();
            some.forEach(messages::add);
            if (messages.size() == before) {
                throw new AssertionError(before + " of " + count + " messages came");
            }
        }
        return messages;
    }

    private static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return received(receiver, 1).get(0);
    }

    private static List<String> bodies(Iterable<ServiceBusReceivedMessage> messages) {
        List<String> bodies = new ArrayList<>();
        messages.forEach(message -> bodies.add(message.getBody().toString()));
        return bodies;
    }

    private List<String> peeked(String queue) {
        try (ServiceBusReceiverClient receiver = client().receiver().queueName(queue).buildClient()) {
            return bodies(receiver.peekMessages(50, 1));
        }
    }

    private static CompleteOptions in(ServiceBusTransactionContext transaction) {
        return new CompleteOptions().setTransactionContext(transaction);
    }

    // A batch, received by a processor, which completes by itself.
    private void processor() throws Exception {
        CountDownLatch left = new CountDownLatch(10);
        try (ServiceBusSenderClient sender = client().sender().queueName("java-messages").buildClient()) {
            ServiceBusMessageBatch batch = sender.createMessageBatch();
            for (int number = 0; number < 10; number++) {
                equal(true, batch.tryAddMessage(new ServiceBusMessage(String.valueOf(number))));
            }
            sender.sendMessages(batch);
        }
        List<String> errors = new ArrayList<>();
        try (ServiceBusProcessorClient processor = client().processor().queueName("java-messages")
                .processMessage(context -> left.countDown())
                .processError(context -> errors.add(String.valueOf(context.getException())))
                .buildProcessorClient()) {
            processor.start();
            equal(true, left.await(PATIENCE.toMillis(), TimeUnit.MILLISECONDS));
            Thread.sleep(BRIEF.toMillis());
        }
        equal(new ArrayList<>(), errors);
        equal(new ArrayList<>(), peeked("java-messages"));
    }

    // The reason of an error, by which a program decides.
    private void refusals() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-missing").buildClient()) {
            ServiceBusFailureReason reason = refused(() -> sender.sendMessage(new ServiceBusMessage("x")));
            equal(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, reason);
        }
    }

    private static ServiceBusFailureReason refused(Runnable work) {
        try {
            work.run();
        } catch (ServiceBusException error) {
            return error.getReason();
        }
        throw new AssertionError("it was not refused");
    }

    // Settlements, dead letters, deferral and locks.
    private void messages() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-messages").buildClient();
             ServiceBusReceiverClient receiver = client().receiver().queueName("java-messages").buildClient();
             ServiceBusReceiverClient dead = client().receiver().queueName("java-messages")
                 .subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
            List<ServiceBusMessage> sent = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                ServiceBusMessage message = new ServiceBusMessage(String.valueOf(number));
                message.getApplicationProperties().put("n", number);
                sent.add(message);
            }
            sender.sendMessages(sent);
            List<ServiceBusReceivedMessage> messages = received(receiver, 4);
            equal(Arrays.asList("0", "1", "2", "3"), bodies(messages));
            equal(2, messages.get(2).getApplicationProperties().get("n"));
            receiver.complete(messages.get(0));
            receiver.abandon(messages.get(1));
            receiver.defer(messages.get(2));
            receiver.deadLetter(messages.get(3), new DeadLetterOptions().setDeadLetterReason("r"));
            ServiceBusReceivedMessage again = one(receiver);
            equal("1", again.getBody().toString());
            equal(1L, again.getDeliveryCount());
            receiver.renewMessageLock(again);
            receiver.complete(again);
            receiver.complete(receiver.receiveDeferredMessage(messages.get(2).getSequenceNumber()));
            ServiceBusReceivedMessage letter = one(dead);
            equal("r", letter.getDeadLetterReason());
            dead.complete(letter);
        }
        equal(new ArrayList<>(), peeked("java-messages"));
    }

    private void sessions() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-sessions").buildClient();
             ServiceBusSessionReceiverClient acceptor = client().sessionReceiver().queueName("java-sessions")
                 .buildClient()) {
            for (String session : Arrays.asList("a", "b", "a")) {
                sender.sendMessage(new ServiceBusMessage(session).setSessionId(session));
            }
            try (ServiceBusReceiverClient a = acceptor.acceptSession("a")) {
                a.setSessionState("state".getBytes());
                equal("state", new String(a.getSessionState()));
                a.renewSessionLock();
                for (ServiceBusReceivedMessage message : received(a, 2)) {
                    equal("a", message.getSessionId());
                    a.complete(message);
                }
                try (ServiceBusReceiverClient next = acceptor.acceptNextSession()) {
                    equal("b", next.getSessionId());
                    next.complete(one(next));
                }
            }
        }
    }

    // Every settlement and a send, rolled back and committed. The client settles a message object once, so each
    // transaction has messages of its own.
    private void oneEntity() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-one").buildClient()) {
            for (int number = 0; number < 8; number++) {
                sender.sendMessage(new ServiceBusMessage(String.valueOf(number)));
            }
        }
        List<String> all = Arrays.asList("0", "1", "2", "3", "4", "5", "6", "7");
        ServiceBusClientBuilder client = client();
        try (ServiceBusSenderClient sender = client.sender().queueName("java-one").buildClient();
             ServiceBusReceiverClient receiver = client.receiver().queueName("java-one").buildClient()) {
            for (boolean isCommitted : new boolean[] {false, true}) {
                List<ServiceBusReceivedMessage> messages = received(receiver, 4);
                ServiceBusTransactionContext transaction = receiver.createTransaction();
                receiver.complete(messages.get(0), in(transaction));
                receiver.abandon(messages.get(1), new AbandonOptions().setTransactionContext(transaction));
                receiver.defer(messages.get(2), new DeferOptions().setTransactionContext(transaction));
                receiver.deadLetter(messages.get(3), new DeadLetterOptions().setTransactionContext(transaction));
                sender.sendMessage(new ServiceBusMessage("new"), transaction);
                equal(all, peeked("java-one"));
                if (isCommitted) {
                    receiver.commitTransaction(transaction);
                } else {
                    receiver.rollbackTransaction(transaction);
                    equal(all, peeked("java-one"));
                }
            }
            equal(Arrays.asList("0", "1", "2", "3", "5", "6", "new"), peeked("java-one"));
        }
    }

    private void schedule() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-schedule").buildClient()) {
            OffsetDateTime later = OffsetDateTime.now().plusHours(1);
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.scheduleMessage(new ServiceBusMessage("a"), later, transaction);
            sender.rollbackTransaction(transaction);
            equal(new ArrayList<>(), peeked("java-schedule"));
            transaction = sender.createTransaction();
            long number = sender.scheduleMessage(new ServiceBusMessage("b"), later, transaction);
            sender.commitTransaction(transaction);
            equal(Arrays.asList("b"), peeked("java-schedule"));
            sender.cancelScheduledMessage(number);
        }
    }

    private void twoEntities() {
        try (ServiceBusSenderClient sender = client().sender().queueName("java-in").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("w"));
            sender.sendMessage(new ServiceBusMessage("x"));
        }
        ServiceBusClientBuilder client = client().enableCrossEntityTransactions();
        try (ServiceBusReceiverClient receiver = client.receiver().queueName("java-in").buildClient();
             ServiceBusSenderClient one = client.sender().queueName("java-out").buildClient();
             ServiceBusSenderClient other = client.sender().topicName("java-topic").buildClient()) {
            List<ServiceBusReceivedMessage> messages = received(receiver, 2);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(messages.get(0), in(transaction));
            one.sendMessage(new ServiceBusMessage("undone"), transaction);
            receiver.rollbackTransaction(transaction);
            equal(Arrays.asList("w", "x"), peeked("java-in"));
            transaction = receiver.createTransaction();
            receiver.complete(messages.get(1), in(transaction));
            one.sendMessage(new ServiceBusMessage("y"), transaction);
            other.sendMessage(new ServiceBusMessage("z"), transaction);
            equal(new ArrayList<>(), peeked("java-out"));
            receiver.commitTransaction(transaction);
        }
        equal(Arrays.asList("w"), peeked("java-in"));
        arrived("java-out", "y");
        try (ServiceBusReceiverClient receiver = client().receiver().topicName("java-topic").subscriptionName("s")
                 .buildClient()) {
            ServiceBusReceivedMessage message = one(receiver);
            equal("z", message.getBody().toString());
            receiver.complete(message);
        }
    }

    private void subscription() {
        try (ServiceBusSenderClient sender = client().sender().topicName("java-topic").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x"));
        }
        ServiceBusClientBuilder client = client().enableCrossEntityTransactions();
        try (ServiceBusReceiverClient receiver = client.receiver().topicName("java-topic").subscriptionName("s")
                 .buildClient();
             ServiceBusSenderClient via = client.sender().topicName("java-topic").buildClient();
             ServiceBusSenderClient sender = client.sender().queueName("java-out").buildClient()) {
            ServiceBusReceivedMessage message = one(receiver);
            via.createMessageBatch(); // attaches, and so puts the token that the send through the topic needs
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(message, in(transaction));
            sender.sendMessage(new ServiceBusMessage("y"), transaction);
            receiver.commitTransaction(transaction);
            equal(new ArrayList<>(), bodies(receiver.peekMessages(50, 1)));
        }
        arrived("java-out", "y");
    }

    // The client cannot write a via-partition-key, so its transactions on partitioned entities have one entity.
    private void partitioned() {
        ServiceBusClientBuilder client = client();
        try (ServiceBusSenderClient sender = client.sender().queueName("java-partitioned").buildClient();
             ServiceBusReceiverClient receiver = client.receiver().queueName("java-partitioned").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x").setPartitionKey("k"));
            ServiceBusReceivedMessage message = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(message, in(transaction));
            sender.sendMessage(new ServiceBusMessage("y").setPartitionKey("k"), transaction);
            receiver.commitTransaction(transaction);
        }
        equal(Arrays.asList("y"), peeked("java-partitioned"));
    }

    private void secondReceiver() {
        ServiceBusClientBuilder client = client().enableCrossEntityTransactions();
        try (ServiceBusReceiverClient first = client.receiver().queueName("java-in").buildClient();
             ServiceBusReceiverClient second = client.receiver().queueName("java-out").buildClient()) {
            bodies(first.receiveMessages(1, BRIEF));
            try {
                bodies(second.receiveMessages(1, PATIENCE));
            } catch (RuntimeException error) {
                for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                    if (String.valueOf(cause.getMessage()).contains("cannot span multiple top-level entities")) {
                        return;
                    }
                }
                throw error;
            }
            throw new AssertionError("the receiver of a second entity was accepted");
        }
    }

    private void arrived(String queue, String body) {
        try (ServiceBusReceiverClient receiver = client().receiver().queueName(queue).buildClient()) {
            ServiceBusReceivedMessage message = one(receiver);
            equal(body, message.getBody().toString());
            receiver.complete(message);
        }
    }

    // Rules over AMQP, and the messages that they select.
    private void rules() {
        try (ServiceBusRuleManagerClient rules = client().ruleManager().topicName("java-rules").subscriptionName("s")
                 .buildClient();
             ServiceBusSenderClient sender = client().sender().topicName("java-rules").buildClient();
             ServiceBusReceiverClient receiver = client().receiver().topicName("java-rules").subscriptionName("s")
                 .buildClient()) {
            rules.deleteRule("$Default");
            rules.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("n = 2"))
                .setAction(new SqlRuleAction("SET m = 3")));
            rules.createRule("label", new CreateRuleOptions(new CorrelationRuleFilter().setLabel("red")));
            List<String> names = new ArrayList<>();
            rules.listRules().forEach(rule -> names.add(rule.getName()));
            names.sort(null);
            equal(Arrays.asList("label", "sql"), names);
            ServiceBusMessage yes = new ServiceBusMessage("yes");
            yes.getApplicationProperties().put("n", 2);
            sender.sendMessages(Arrays.asList(new ServiceBusMessage("no"), yes));
            ServiceBusReceivedMessage message = one(receiver);
            equal("yes", message.getBody().toString());
            equal(3, ((Number) message.getApplicationProperties().get("m")).intValue());
            receiver.complete(message);
            equal(new ArrayList<>(), bodies(receiver.peekMessages(50, 1)));
        }
    }

    private void administration() {
        ServiceBusAdministrationClient manager = administrator();
        manager.createTopic("Java/Topic");
        manager.createSubscription("Java/Topic", "Sub", new CreateSubscriptionOptions().setMaxDeliveryCount(3));
        SubscriptionProperties subscription = manager.getSubscription("Java/Topic", "Sub");
        equal("Java/Topic", subscription.getTopicName());
        equal(3, subscription.getMaxDeliveryCount());
        equal(7, manager.updateSubscription(subscription.setMaxDeliveryCount(7)).getMaxDeliveryCount());
        manager.createRule("Java/Topic", "Red", "Sub", new CreateRuleOptions(new SqlRuleFilter("colour = 'red'")));
        RuleProperties rule = manager.getRule("Java/Topic", "Sub", "Red");
        equal("colour = 'red'", ((SqlRuleFilter) rule.getFilter()).getSqlExpression());
        List<String> names = new ArrayList<>();
        manager.listRules("Java/Topic", "Sub").forEach(each -> names.add(each.getName()));
        equal(Arrays.asList("$Default", "Red"), names);
        try (ServiceBusSenderClient sender = client().sender().topicName("Java/Topic").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x"));
        }
        equal(1, manager.getSubscriptionRuntimeProperties("Java/Topic", "Sub").getActiveMessageCount());
        try {
            manager.createTopic("Java/Topic");
            throw new AssertionError("a second topic was created");
        } catch (ResourceExistsException expected) {
            equal(409, expected.getResponse().getStatusCode());
        }
        try {
            manager.getQueue("java-missing");
            throw new AssertionError("a missing queue was found");
        } catch (ResourceNotFoundException expected) {
            equal(200, expected.getResponse().getStatusCode()); // the service answers with an empty list
        }
        manager.deleteTopic("Java/Topic");
        equal(false, manager.getTopicExists("Java/Topic"));
    }

    // The same sender and receiver before and after all connections are reset.
    private void outage() throws Exception {
        ServiceBusClientBuilder client = client(3);
        try (ServiceBusSenderClient sender = client.sender().queueName("java-outage").buildClient();
             ServiceBusReceiverClient receiver = client.receiver().queueName("java-outage").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("before"));
            receiver.complete(one(receiver));
            System.out.println("outage");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            sender.sendMessage(new ServiceBusMessage("after"));
            ServiceBusReceivedMessage message = one(receiver);
            equal("after", message.getBody().toString());
            receiver.complete(message);
        }
    }
}
