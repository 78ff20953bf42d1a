// Checks azservicebus, the Go client, against the emulator: one line "ok <check>" or "failed <check> <why>" each.
//
// Usage: checks <connection string> <host:port> <plain|tls|websocket> <CA file>
//
// The line "outage" asks the caller to reset all connections; the caller answers with a line.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"golang.org/x/net/websocket"
)

var (
	client  *azservicebus.Client
	manager *admin.Client
	prefix  string
	answers = bufio.NewReader(os.Stdin)
)

// expect ends the check if an error is not nil, or a condition does not hold.
func expect(condition bool, err error, what string) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
	if !condition {
		panic(what)
	}
}

func queue(ctx context.Context, name string, properties admin.QueueProperties) string {
	path := prefix + name
	_, err := manager.CreateQueue(ctx, path, &admin.CreateQueueOptions{Properties: &properties})
	expect(true, err, "create queue")
	return path
}

func sender(path string) *azservicebus.Sender {
	made, err := client.NewSender(path, nil)
	expect(true, err, "new sender")
	return made
}

func send(ctx context.Context, path string, messages ...*azservicebus.Message) {
	out := sender(path)
	defer out.Close(ctx)
	batch, err := out.NewMessageBatch(ctx, nil)
	expect(true, err, "new batch")
	for _, message := range messages {
		expect(true, batch.AddMessage(message, nil), "add to batch")
	}
	expect(true, out.SendMessageBatch(ctx, batch, nil), "send batch")
}

func text(body string) *azservicebus.Message { return &azservicebus.Message{Body: []byte(body)} }

func one(ctx context.Context, receiver *azservicebus.Receiver) *azservicebus.ReceivedMessage {
	for {
		found, err := receiver.ReceiveMessages(ctx, 1, nil)
		expect(true, err, "receive one")
		if len(found) == 1 { // none after a lost connection
			return found[0]
		}
	}
}

func settlements(ctx context.Context) {
	path := queue(ctx, "settlements", admin.QueueProperties{})
	send(ctx, path, text("0"), text("1"), text("2"), text("3"))
	receiver, err := client.NewReceiverForQueue(path, nil)
	expect(true, err, "new receiver")
	var found []*azservicebus.ReceivedMessage
	for len(found) < 4 {
		found = append(found, one(ctx, receiver))
	}
	expect(string(found[2].Body) == "2" && found[0].MessageID != "", nil, "bodies and ids")
	expect(true, receiver.RenewMessageLock(ctx, found[0], nil), "renew lock")
	expect(true, receiver.CompleteMessage(ctx, found[0], nil), "complete")
	set := map[string]any{"why": "later"}
	expect(true, receiver.AbandonMessage(ctx, found[1], &azservicebus.AbandonMessageOptions{PropertiesToModify: set}), "abandon")
	again := one(ctx, receiver)
	expect(again.DeliveryCount == 2 && again.ApplicationProperties["why"] == "later", nil, "abandoned message")
	expect(true, receiver.CompleteMessage(ctx, again, nil), "complete again")
	expect(true, receiver.DeferMessage(ctx, found[2], &azservicebus.DeferMessageOptions{PropertiesToModify: set}), "defer")
	deferred, err := receiver.ReceiveDeferredMessages(ctx, []int64{*found[2].SequenceNumber}, nil)
	expect(len(deferred) == 1 && deferred[0].ApplicationProperties["why"] == "later", err, "deferred message")
	expect(true, receiver.CompleteMessage(ctx, deferred[0], nil), "complete deferred")
	options := azservicebus.DeadLetterOptions{Reason: to.Ptr("r"), ErrorDescription: to.Ptr("d"), PropertiesToModify: set}
	expect(true, receiver.DeadLetterMessage(ctx, found[3], &options), "dead-letter")
	dead, err := client.NewReceiverForQueue(path, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	expect(true, err, "dead-letter receiver")
	letter := one(ctx, dead)
	expect(*letter.DeadLetterReason == "r" && letter.ApplicationProperties["why"] == "later", nil, "dead letter")
	expect(true, dead.CompleteMessage(ctx, letter, nil), "complete dead letter")
}

func scheduling(ctx context.Context) {
	path := queue(ctx, "scheduling", admin.QueueProperties{})
	out := sender(path)
	numbers, err := out.ScheduleMessages(ctx, []*azservicebus.Message{text("a"), text("b")}, time.Now().Add(time.Hour), nil)
	expect(len(numbers) == 2, err, "schedule")
	receiver, err := client.NewReceiverForQueue(path, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	expect(true, err, "new receiver")
	peeked, err := receiver.PeekMessages(ctx, 5, nil)
	expect(len(peeked) == 2 && peeked[0].State == azservicebus.MessageStateScheduled, err, "peek")
	expect(true, out.CancelScheduledMessages(ctx, numbers, nil), "cancel")
	_, err = out.ScheduleMessages(ctx, []*azservicebus.Message{text("c")}, time.Now().Add(time.Second), nil)
	expect(true, err, "schedule soon")
	expect(string(one(ctx, receiver).Body) == "c", nil, "scheduled message")
}

func sessions(ctx context.Context) {
	path := queue(ctx, "sessions", admin.QueueProperties{RequiresSession: to.Ptr(true)})
	for _, id := range []string{"a", "b"} {
		send(ctx, path, &azservicebus.Message{Body: []byte(id), SessionID: &id})
	}
	first, err := client.AcceptSessionForQueue(ctx, path, "b", nil)
	expect(true, err, "accept")
	expect(true, first.SetSessionState(ctx, []byte("half"), nil), "set state")
	state, err := first.GetSessionState(ctx, nil)
	expect(string(state) == "half", err, "get state")
	expect(true, first.RenewSessionLock(ctx, nil), "renew")
	found, err := first.ReceiveMessages(ctx, 5, nil)
	expect(len(found) == 1 && string(found[0].Body) == "b", err, "receive")
	expect(true, first.CompleteMessage(ctx, found[0], nil), "complete")
	expect(true, first.Close(ctx), "close")
	next, err := client.AcceptNextSessionForQueue(ctx, path, nil)
	expect(err == nil && next.SessionID() == "a", err, "accept next")
	expect(true, next.Close(ctx), "close next")
}

func administration(ctx context.Context) {
	topic := prefix + "topic"
	_, err := manager.CreateTopic(ctx, topic, &admin.CreateTopicOptions{Properties: &admin.TopicProperties{SupportOrdering: to.Ptr(true)}})
	expect(true, err, "create topic")
	_, err = manager.CreateSubscription(ctx, topic, "Sub", nil)
	expect(true, err, "create subscription")
	rule := admin.CreateRuleOptions{Name: to.Ptr("Red"), Filter: &admin.SQLFilter{Expression: "colour = 'red'"}, Action: &admin.SQLAction{Expression: "SET seen = 1"}}
	_, err = manager.CreateRule(ctx, topic, "Sub", &rule)
	expect(true, err, "create rule")
	_, err = manager.DeleteRule(ctx, topic, "Sub", "$Default", nil)
	expect(true, err, "delete rule")
	got, err := manager.GetRule(ctx, topic, "Sub", "Red", nil)
	expect(err == nil && got != nil && got.Filter.(*admin.SQLFilter).Expression == "colour = 'red'", err, "get rule")
	subscription, err := manager.GetSubscription(ctx, topic, "Sub", nil)
	expect(err == nil && subscription != nil && subscription.SubscriptionName == "Sub", err, "get subscription")
	names := 0
	for pager := manager.NewListSubscriptionsPager(topic, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		expect(true, err, "list subscriptions")
		names += len(page.Subscriptions)
	}
	expect(names == 1, nil, "subscriptions")
	send(ctx, topic, text("no"), &azservicebus.Message{Body: []byte("yes"), ApplicationProperties: map[string]any{"colour": "red"}})
	receiver, err := client.NewReceiverForSubscription(topic, "Sub", nil)
	expect(true, err, "new receiver")
	message := one(ctx, receiver)
	expect(string(message.Body) == "yes" && message.ApplicationProperties["seen"] != nil, nil, "filtered message")
	runtime, err := manager.GetSubscriptionRuntimeProperties(ctx, topic, "Sub", nil)
	expect(err == nil && runtime.ActiveMessageCount == 1, err, "counts")
	missing, err := manager.GetQueue(ctx, prefix+"missing", nil)
	expect(missing == nil, err, "missing queue")
	_, err = manager.CreateTopic(ctx, topic, nil)
	var refused *azcore.ResponseError
	expect(errors.As(err, &refused) && refused.StatusCode == http.StatusConflict, nil, "conflict")
	_, err = manager.DeleteTopic(ctx, topic, nil)
	expect(true, err, "delete topic")
}

func refusals(ctx context.Context) {
	err := sender(prefix+"missing").SendMessage(ctx, text("x"), nil)
	var failure *azservicebus.Error
	expect(errors.As(err, &failure) && failure.Code == azservicebus.CodeNotFound, nil, fmt.Sprintf("not found: %v", err))
	path := queue(ctx, "refusals", admin.QueueProperties{RequiresSession: to.Ptr(true)})
	expect(sender(path).SendMessage(ctx, text("no session"), nil) != nil, nil, "no session")
}

func outage(ctx context.Context) {
	path := queue(ctx, "outage", admin.QueueProperties{})
	out := sender(path)
	receiver, err := client.NewReceiverForQueue(path, nil)
	expect(true, err, "new receiver")
	expect(true, out.SendMessage(ctx, text("before"), nil), "send before")
	expect(true, receiver.CompleteMessage(ctx, one(ctx, receiver), nil), "complete before")
	fmt.Println("outage")
	_, err = answers.ReadString('\n')
	expect(true, err, "answer")
	expect(true, out.SendMessage(ctx, text("after"), nil), "send after")
	message := one(ctx, receiver)
	expect(string(message.Body) == "after", nil, "receive after")
	expect(true, receiver.CompleteMessage(ctx, message, nil), "complete after")
}

func main() {
	text, address, mode, authority := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	prefix = "go-" + mode + "-"
	pool := x509.NewCertPool()
	if raw, err := os.ReadFile(authority); err != nil || !pool.AppendCertsFromPEM(raw) {
		panic(fmt.Sprintf("no certificate in %s: %v", authority, err))
	}
	trusted := &tls.Config{RootCAs: pool, ServerName: "localhost"} // the client would check the port as well
	options := &azservicebus.ClientOptions{TLSConfig: trusted, RetryOptions: azservicebus.RetryOptions{MaxRetries: 3, RetryDelay: 200 * time.Millisecond}}
	if mode != "plain" {
		text = strings.ReplaceAll(text, "UseDevelopmentEmulator=true", "")
		options.CustomEndpoint = address
	}
	if mode == "websocket" {
		options.NewWebSocketConn = func(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			config, err := websocket.NewConfig("wss://"+address+"/$servicebus/websocket", "https://"+address)
			if err != nil {
				return nil, err
			}
			config.Protocol, config.TlsConfig = []string{"AMQPWSB10"}, trusted
			stream, err := websocket.DialConfig(config)
			if err == nil {
				stream.PayloadType = websocket.BinaryFrame
			}
			return stream, err
		}
	}
	var err error
	client, err = azservicebus.NewClientFromConnectionString(text, options)
	expect(true, err, "new client")
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: trusted}}
	manager, err = admin.NewClientFromConnectionString(os.Args[1], &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: web}})
	expect(true, err, "new admin client")
	for _, each := range []struct {
		name string
		run  func(context.Context)
	}{{"settlements", settlements}, {"scheduling", scheduling}, {"sessions", sessions}, {"administration", administration}, {"refusals", refusals}, {"outage", outage}} {
		func() {
			ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
			defer cancel()
			defer func() {
				if reason := recover(); reason != nil {
					fmt.Printf("failed %s %s\n", each.name, strings.ReplaceAll(fmt.Sprint(reason), "\n", " | "))
				}
			}()
			each.run(ctx)
			fmt.Println("ok " + each.name)
		}()
	}
}
