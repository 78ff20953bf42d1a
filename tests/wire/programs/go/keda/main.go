// Checks KEDA's scaler for Service Bus against the emulator: one line "ok <check>" or "failed <check> <why>" each.
//
// Usage: keda <connection string>
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

// measure returns the metric of a trigger in units of one message, and whether KEDA would start a pod.
func measure(trigger map[string]string) (float64, bool, error) {
	ctx := context.Background()
	scaler, err := scalers.NewAzureServiceBusScaler(ctx, &scalersconfig.ScalerConfig{
		TriggerMetadata:   trigger,
		AuthParams:        map[string]string{"connection": os.Args[1]},
		GlobalHTTPTimeout: 30 * time.Second,
	})
	if err != nil {
		return 0, false, err
	}
	defer scaler.Close(ctx)
	name := scaler.GetMetricSpecForScaling(ctx)[0].External.Metric.Name
	values, isActive, err := scaler.GetMetricsAndActivity(ctx, name)
	if err != nil {
		return 0, false, err
	}
	return values[0].Value.AsApproximateFloat64(), isActive, nil
}

func check(name string, expected float64, expectedActive bool, expectedError string, trigger map[string]string) {
	value, isActive, err := measure(trigger)
	switch {
	case err != nil && (expectedError == "" || !strings.Contains(err.Error(), expectedError)):
		fmt.Println("failed", name, strings.ReplaceAll(err.Error(), "\n", " | "))
	case err == nil && (expectedError != "" || value != expected || isActive != expectedActive):
		fmt.Println("failed", name, value, isActive)
	default:
		fmt.Println("ok", name)
	}
}

func main() {
	check("queue", 7, true, "", map[string]string{"queueName": "orders", "activationMessageCount": "5"})
	check("inactive", 7, false, "", map[string]string{"queueName": "orders", "activationMessageCount": "7"})
	check("empty", 0, false, "", map[string]string{"queueName": "empty"})
	check("subscription", 7, true, "", map[string]string{"topicName": "events", "subscriptionName": "worker"})
	check("sum", 10, true, "", map[string]string{"queueName": "orders.*", "useRegex": "true"})
	check("max", 7, true, "", map[string]string{"queueName": "orders.*", "useRegex": "true", "operation": "max"})
	check("subscriptions", 14, true, "",
		map[string]string{"topicName": "events", "subscriptionName": "w.*", "useRegex": "true"})
	check("missing queue", 0, false, "queue missing doesn't exist", map[string]string{"queueName": "missing"})
	check("missing subscription", 0, false, "subscription missing doesn't exist in topic events",
		map[string]string{"topicName": "events", "subscriptionName": "missing"})
	check("missing topic", 0, false, "subscription worker doesn't exist in topic missing",
		map[string]string{"topicName": "missing", "subscriptionName": "worker"})
}
