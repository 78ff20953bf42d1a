// spring-messaging-azure-servicebus, one line for each check: "ok <check>" or "failed <check> <why>".

import com.azure.spring.cloud.service.servicebus.consumer.ServiceBusErrorHandler;
import com.azure.spring.cloud.service.servicebus.consumer.ServiceBusRecordMessageListener;
import com.azure.spring.cloud.service.servicebus.properties.ServiceBusEntityType;
import com.azure.spring.messaging.servicebus.core.DefaultServiceBusNamespaceProcessorFactory;
import com.azure.spring.messaging.servicebus.core.DefaultServiceBusNamespaceProducerFactory;
import com.azure.spring.messaging.servicebus.core.ServiceBusTemplate;
import com.azure.spring.messaging.servicebus.core.listener.ServiceBusMessageListenerContainer;
import com.azure.spring.messaging.servicebus.core.properties.NamespaceProperties;
import com.azure.spring.messaging.servicebus.core.properties.ServiceBusContainerProperties;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.springframework.messaging.support.MessageBuilder;

public class SpringAzure {
    static final int COUNT = 50;

    public static void main(String[] args) throws Exception {
        NamespaceProperties namespace = new NamespaceProperties();
        namespace.setConnectionString(args[0]);
        Set<String> seen = new ConcurrentSkipListSet<>();
        CountDownLatch all = new CountDownLatch(COUNT + 1);
        ServiceBusContainerProperties container = new ServiceBusContainerProperties();
        container.setEntityName("queue");
        container.setEntityType(ServiceBusEntityType.QUEUE);
        container.setMaxConcurrentCalls(4);
        container.setErrorHandler((ServiceBusErrorHandler) error -> error.getException().printStackTrace());
        container.setMessageListener((ServiceBusRecordMessageListener) received -> {
            String body = received.getMessage().getBody().toString();
            if (body.equals("7") && received.getMessage().getDeliveryCount() == 0) {
                all.countDown();
                throw new IllegalStateException("the first delivery"); // it is abandoned, and comes again
            }
            if (seen.add(body)) {
                all.countDown();
            }
        });
        ServiceBusMessageListenerContainer listener = new ServiceBusMessageListenerContainer(
            new DefaultServiceBusNamespaceProcessorFactory(namespace), container);
        listener.start();
        ServiceBusTemplate template = new ServiceBusTemplate(new DefaultServiceBusNamespaceProducerFactory(namespace));
        template.setDefaultEntityType(ServiceBusEntityType.QUEUE);
        for (int i = 0; i < COUNT; i++) {
            template.send("queue", MessageBuilder.withPayload(String.valueOf(i)).setHeader("number", i).build());
        }
        boolean isComplete = all.await(60, TimeUnit.SECONDS);
        System.out.println(isComplete ? "ok messages" : "failed messages " + seen);
        listener.stop();
        System.exit(0);
    }
}
