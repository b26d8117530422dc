package daemon

import (
	"context"
	"runtime"
	"testing"
	"time"

	"covey/web/wire"
)

func TestConnectingStreamingAndHangingUpLeavesNothingBehind(t *testing.T) {
	d := modelDaemon(t)
	eng, _ := d.Engine()
	client := d.client()
	// settled waits until nothing of the cycles runs and returns the number of goroutines.
	settled := func() int {
		for range 2000 {
			if st := eng.Stats(); st.Running == 0 && st.Queued == 0 && len(d.slots) == 0 && d.hub.size() == 0 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		return runtime.NumGoroutine()
	}
	cycle := func() {
		ws := d.browser().connect()
		send(t, ws, wire.Ping, 0)
		receive(t, ws)
		ws.Close()
		ctx, hangUp := context.WithCancel(t.Context())
		events := client.Chat.Completions.NewStreaming(ctx, endless(d))
		if !events.Next() {
			t.Fatal(events.Err())
		}
		hangUp()
		events.Close()
		settled() // the next one finds a free slot
	}
	cycle() // what is made once is made
	before := settled()
	used := eng.Stats().KVTokensUsed
	for range 20 {
		cycle()
	}
	after := settled()
	for range 1000 { // idle connections of the client end in their own time
		if after <= before+4 {
			break
		}
		time.Sleep(5 * time.Millisecond)
		after = runtime.NumGoroutine()
	}
	if st := eng.Stats(); st.Running != 0 || len(d.slots) != 0 || d.hub.size() != 0 || after > before+4 {
		t.Errorf("left behind: %d sequences, %d slots, %d sockets, %d goroutines (%d before)", st.Running, len(d.slots), d.hub.size(), after, before)
	}
	if now := eng.Stats().KVTokensUsed; now > used+1024 { // prefixes kept for reuse are bounded by what one cycle leaves
		t.Errorf("%d tokens of KV cache are held, %d before", now, used)
	}
}
