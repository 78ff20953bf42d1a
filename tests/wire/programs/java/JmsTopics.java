// Topics of JMS 2.0, and their subscribers.

import jakarta.jms.*;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

public class JmsTopics extends Jms {
    public static void main(String[] args) throws Exception {
        run(args, Map.of(
            "topic", JmsTopics::topic, "durable", JmsTopics::durable, "existing", JmsTopics::existing,
            "shared", JmsTopics::shared));
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
}
