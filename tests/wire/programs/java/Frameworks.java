// spring-jms and Camel over Qpid JMS, one line each: "ok <check>" or "failed <check> <why>".

import jakarta.jms.ConnectionFactory;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.jms.JmsComponent;
import org.apache.camel.impl.DefaultCamelContext;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;
import org.springframework.jms.support.converter.SimpleMessageConverter;

public class Frameworks {
    interface Check {
        void run(ConnectionFactory factory) throws Exception;
    }

    public static void main(String[] args) {
        JmsConnectionFactory factory = new JmsConnectionFactory("RootManageSharedAccessKey", "SAS_KEY_VALUE", args[0]);
        run("spring", Frameworks::spring, factory);
        run("camel", Frameworks::camel, factory);
        System.exit(0);
    }

    static void run(String name, Check check, ConnectionFactory factory) {
        try {
            check.run(factory);
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("failed " + name + " " + String.valueOf(error).replace("\n", " | "));
            error.printStackTrace();
        }
    }

    /** A listener whose first delivery fails rolls back, and gets each message; another one answers requests. */
    static void spring(ConnectionFactory plain) throws Exception {
        CachingConnectionFactory factory = new CachingConnectionFactory(plain);
        JmsTemplate template = new JmsTemplate(factory);
        template.setReceiveTimeout(20_000);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        AtomicInteger deliveries = new AtomicInteger();
        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer();
        container.setConnectionFactory(plain);
        container.setDestinationName("queue");
        container.setSessionTransacted(true);
        container.setupMessageListener((jakarta.jms.MessageListener) message -> {
            try {
                if (deliveries.incrementAndGet() == 1) {
                    throw new IllegalStateException("the first delivery");
                }
                seen.add((String) new SimpleMessageConverter().fromMessage(message));
            } catch (jakarta.jms.JMSException error) {
                throw new RuntimeException(error);
            }
        });
        container.afterPropertiesSet();
        container.start();
        template.convertAndSend("queue", "order");
        equal("order", seen.poll(30, TimeUnit.SECONDS));
        equal(2, deliveries.get());
        container.shutdown();

        template.convertAndSend("selector", "small", message -> with(message, 1));
        template.convertAndSend("selector", "large", message -> with(message, 100));
        equal("large", template.receiveSelectedAndConvert("selector", "size > 10"));
        equal("small", template.receiveAndConvert("selector"));
        factory.destroy();
    }

    static jakarta.jms.Message with(jakarta.jms.Message message, int size) throws jakarta.jms.JMSException {
        message.setIntProperty("size", size);
        return message;
    }

    /** A route reads a queue and a durable subscription, and a request gets its reply over a temporary queue. */
    static void camel(ConnectionFactory factory) throws Exception {
        try (DefaultCamelContext context = new DefaultCamelContext()) {
            context.addComponent("jms", JmsComponent.jmsComponentTransacted(new CachingConnectionFactory(factory)));
            context.addComponent("plain", JmsComponent.jmsComponent(new CachingConnectionFactory(factory)));
            context.addComponent("durable", JmsComponent.jmsComponent(factory)); // a client id is of one connection
            BlockingQueue<String> copies = new LinkedBlockingQueue<>();
            context.addRoutes(new RouteBuilder() {
                @Override
                public void configure() {
                    from("jms:queue:transacted").transform(body().prepend("moved ")).to("jms:queue:moved");
                    from("durable:topic:topic?clientId=camel&durableSubscriptionName=copies")
                        .process(exchange -> copies.add(exchange.getIn().getBody(String.class)));
                    from("plain:queue:requests").transform(body().append(" answered"));
                }
            });
            context.start();
            context.createProducerTemplate().sendBody("plain:queue:transacted", "order");
            equal("moved order", context.createConsumerTemplate().receiveBody("plain:queue:moved", 30_000, String.class));
            context.createProducerTemplate().sendBody("plain:topic:topic", "news");
            equal("news", copies.poll(30, TimeUnit.SECONDS));
            Object reply = context.createProducerTemplate().requestBody("plain:queue:requests?requestTimeout=30000", "a");
            equal("a answered", reply);
        }
    }

    static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }
}
