// Checks Dapr's components for Service Bus against the emulator: one line "ok <check>" or "failed <check> <why>" each.
//
// Usage: dapr <connection string>
// It asks for the reset of all connections with the line "outage", and waits for a line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dapr/components-contrib/metadata"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/queues"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/topics"
	"github.com/dapr/kit/logger"
)

const messages, deliveries, hang = 100, 3, 40 * time.Second

var log, poison = logger.NewLogger("checks"), []string{"007", "082"} // always refused

// events are the deliveries of one subscription: how often each body came, and the bodies that were accepted, in order.
type events struct {
	sync.Mutex
	came     map[string]int
	accepted []string
}

// accept handles one delivery, unless `refuse` wants it again.
func (e *events) accept(body string, refuse func(body string, delivery int) bool) error {
	e.Lock()
	defer e.Unlock()
	e.came[body]++
	if refuse(body, e.came[body]) {
		return errors.New("try again")
	}
	e.accepted = append(e.accepted, body)
	return nil
}

// wait until a condition holds, and fail if it never does.
func (e *events) wait(what string, holds func() bool) {
	e.Lock()
	defer e.Unlock()
	for end := time.Now().Add(hang); !holds(); {
		expect(time.Now().Before(end), fmt.Sprintf("%s: %d accepted, deliveries %v", what, len(e.accepted), e.came))
		e.Unlock()
		time.Sleep(10 * time.Millisecond)
		e.Lock()
	}
}

func expect(condition bool, what string) {
	if !condition {
		panic(what)
	}
}

func try(err error, what string) { expect(err == nil, fmt.Sprint(what, ": ", err)) }
func body(n int) string          { return fmt.Sprintf("%03d", n) }

// opened returns a component as Dapr's runtime initializes it from the YAML of a user.
func opened(made pubsub.PubSub, connection string, properties map[string]string) pubsub.PubSub {
	properties["connectionString"] = connection
	try(made.Init(context.Background(), pubsub.Metadata{Base: metadata.Base{Properties: properties}}), "init")
	return made
}

func publish(to pubsub.PubSub, topic string, first int) {
	for n := first; n < first+messages; n++ {
		try(to.Publish(context.Background(), &pubsub.PublishRequest{Topic: topic, Data: []byte(body(n))}), "publish")
	}
}

func subscribe(to pubsub.PubSub, topic string, got *events, refuse func(string, int) bool) {
	try(to.Subscribe(context.Background(), pubsub.SubscribeRequest{Topic: topic}, func(_ context.Context, each *pubsub.NewMessage) error {
		return got.accept(string(each.Data), refuse)
	}), "subscribe")
}

// compare the deliveries with those that are due.
func (e *events) compare() {
	e.Lock()
	defer e.Unlock()
	for n := range messages {
		expected := map[bool]int{false: 1, true: 2}[n%10 == 3]
		if slices.Contains(poison, body(n)) {
			expected = deliveries
		}
		expect(e.came[body(n)] == expected, fmt.Sprintf("message %d came %d times", n, e.came[body(n)]))
	}
}

// retries: each tenth message fails once, and the poison always, until the service dead-letters it.
func retries(to pubsub.PubSub, topic string) *events {
	got := &events{came: map[string]int{}}
	subscribe(to, topic, got, func(body string, delivery int) bool {
		return body[2] == '3' && delivery == 1 || slices.Contains(poison, body)
	})
	publish(to, topic, 0)
	got.wait("retries", func() bool {
		return len(got.accepted) >= messages-len(poison) && got.came[poison[0]]+got.came[poison[1]] >= 2*deliveries
	})
	got.compare()
	return got
}

func check(name string, what func()) {
	defer func() {
		if why := recover(); why != nil {
			fmt.Println("failed", name, why)
		}
	}()
	what()
	fmt.Println("ok", name)
}

func main() {
	log.SetOutput(os.Stderr)
	limits := map[string]string{"consumerID": "worker", "maxDeliveryCount": fmt.Sprint(deliveries)}
	topic := opened(topics.NewAzureServiceBusTopics(log), os.Args[1], limits)
	queue := opened(queues.NewAzureServiceBusQueues(log), os.Args[1], limits)
	check("queue", func() {
		got := retries(queue, "orders")
		dead := &events{came: map[string]int{}}
		reader := opened(queues.NewAzureServiceBusQueues(log), os.Args[1], map[string]string{"disableEntityManagement": "true"})
		subscribe(reader, "orders/$deadletterqueue", dead, func(string, int) bool { return false })
		dead.wait("dead letters", func() bool { return len(dead.accepted) == len(poison) })
		expect(dead.came[poison[0]] == 1 && dead.came[poison[1]] == 1, fmt.Sprint("dead letters: ", dead.accepted))
		got.compare()
		try(reader.Close(), "close")
	})
	check("topic", func() {
		got := retries(topic, "events")
		fmt.Println("outage")
		bufio.NewScanner(os.Stdin).Scan()
		publish(topic, "events", 200)
		got.wait("after the outage", func() bool {
			slices.Sort(got.accepted)
			return len(slices.Compact(slices.Clone(got.accepted))) == 2*messages-len(poison)
		})
	})
	try(errors.Join(topic.Close(), queue.Close()), "close")
}
