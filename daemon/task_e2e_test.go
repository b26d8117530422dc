package daemon

// How long the browser's main thread was busy at a time while something was done with a page. The browser's own count of
// long tasks (PerformanceObserver) goes by the clock, so on a machine with other work it counts waiting; the trace also says
// how much processor time the thread took.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
)

// longTask is what the browser calls a long task, in milliseconds.
const longTask = 50

// mainTasks is the durations of the tasks of a page's main thread, in milliseconds, and what the one that took most processor
// time did.
type mainTasks struct {
	clock, processor []float64
	longest          string
}

// String says how many tasks were long, by the clock and by the processor time they took, and the longest.
func (t mainTasks) String() string {
	say := func(what string, list []float64) string {
		slices.Sort(list)
		long := slices.IndexFunc(list, func(ms float64) bool { return ms > longTask })
		if long < 0 {
			long = len(list)
		}
		return fmt.Sprintf("%s: %d over %d ms, the longest %.0f ms", what, len(list)-long, longTask, list[len(list)-1])
	}
	if len(t.clock) == 0 {
		return "no task"
	}
	return fmt.Sprintf("%d tasks; %s; %s (%s)", len(t.clock), say("by the clock", t.clock), say("in processor time", t.processor), t.longest)
}

// during does something and returns the tasks of the main thread meanwhile.
func (b *tab) during(do func()) mainTasks {
	b.t.Helper()
	_, err := run(b, patience, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, tracing.Start, tracing.StartParams{TraceConfig: &tracing.TraceConfig{IncludedCategories: []string{"toplevel", "devtools.timeline", "v8", "__metadata"}, ExcludedCategories: []string{"*"}}})
		return chromedp.Void{}, err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	do()
	var parts []json.RawMessage
	done := make(chan struct{})
	listening, stop := context.WithCancel(b.ctx)
	defer stop() // what another trace of this tab collects is not ours
	err = chromedp.Listen(listening, func(event any) {
		switch e := event.(type) {
		case *tracing.EventDataCollected:
			for _, v := range e.Value {
				parts = append(parts, json.RawMessage(v))
			}
		case *tracing.EventTracingComplete:
			close(done)
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = run(b, patience, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, target, tracing.End, cdp.Empty{}); err != nil {
			return chromedp.Void{}, err
		}
		select {
		case <-done:
			return chromedp.Void{}, nil
		case <-ctx.Done():
			return chromedp.Void{}, ctx.Err()
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
	type event struct {
		Name, Ph      string
		Pid, Tid      int
		Ts, Dur, Tdur float64 // microseconds
		Args          struct{ Name string }
	}
	events := make([]event, len(parts))
	main := map[[2]int]bool{}
	for i, part := range parts {
		if err := json.Unmarshal(part, &events[i]); err != nil {
			b.t.Fatal(err)
		}
		if e := events[i]; e.Name == "thread_name" && e.Args.Name == "CrRendererMain" {
			main[[2]int{e.Pid, e.Tid}] = true
		}
	}
	const task = "ThreadControllerImpl::RunTask"
	events = slices.DeleteFunc(events, func(e event) bool { return e.Ph != "X" || !main[[2]int{e.Pid, e.Tid}] })
	slices.SortStableFunc(events, func(x, y event) int { return cmp.Or(cmp.Compare(x.Ts, y.Ts), cmp.Compare(y.Dur, x.Dur)) })
	var out mainTasks
	var longest event
	for _, e := range events {
		if e.Name == task {
			out.clock, out.processor = append(out.clock, e.Dur/1000), append(out.processor, e.Tdur/1000)
			if e.Tdur > longest.Tdur {
				longest = e
			}
		}
	}
	end := 0.0 // of the part before
	for _, e := range events {
		inside := e.Pid == longest.Pid && e.Tid == longest.Tid && e.Ts >= longest.Ts && e.Ts < longest.Ts+longest.Dur && e.Name != task && e.Name != "Receive mojo message"
		if inside && e.Ts >= end && e.Tdur >= 500 {
			out.longest += fmt.Sprintf("%s %.1f, ", e.Name, e.Tdur/1000)
			end = e.Ts + e.Dur
		}
	}
	out.longest = strings.TrimSuffix(out.longest, ", ")
	return out
}
