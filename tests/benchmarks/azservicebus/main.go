// Sends lists of 100 messages with azservicebus, receives and completes them, and prints the microseconds of processor
// time for each message.
//
// Usage: measure <connection string> <queue> <number of messages>
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const list = 100

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func processor() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Sec+used.Stime.Sec)*1e6 + float64(used.Utime.Usec+used.Stime.Usec)
}

func exchange(ctx context.Context, sender *azservicebus.Sender, receiver *azservicebus.Receiver, count int) {
	body := bytes.Repeat([]byte("x"), 100)
	for sent := 0; sent < count; sent += list {
		batch, err := sender.NewMessageBatch(ctx, nil)
		check(err)
		for range list {
			check(batch.AddMessage(&azservicebus.Message{Body: body}, nil))
		}
		check(sender.SendMessageBatch(ctx, batch, nil))
	}
	for received := 0; received < count; {
		messages, err := receiver.ReceiveMessages(ctx, list, nil)
		check(err)
		var completing sync.WaitGroup
		for _, message := range messages {
			completing.Add(1)
			go func() {
				defer completing.Done()
				check(receiver.CompleteMessage(ctx, message, nil))
			}()
		}
		completing.Wait()
		received += len(messages)
	}
}

func main() {
	ctx := context.Background()
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	client, err := azservicebus.NewClientFromConnectionString(os.Args[1], nil)
	check(err)
	sender, err := client.NewSender(os.Args[2], nil)
	check(err)
	receiver, err := client.NewReceiverForQueue(os.Args[2], nil)
	check(err)
	exchange(ctx, sender, receiver, list)
	began := processor()
	exchange(ctx, sender, receiver, count)
	fmt.Println((processor() - began) / float64(count))
}
