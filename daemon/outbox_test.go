package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func drain(o *outbox) []string {
	var got []string
	for {
		f, ok := o.take()
		if !ok {
			return got
		}
		got = append(got, string(f.Data))
	}
}

func TestEssentialFramesKeepOrderAndGoFirst(t *testing.T) {
	o := newOutbox(func() {})
	o.put(Frame{Class: Visual, Data: []byte("pulse")})
	o.put(Frame{Data: []byte("token 1")})
	o.put(Frame{Data: []byte("token 2")})
	if diff := cmp.Diff([]string{"token 1", "token 2", "pulse"}, drain(o)); diff != "" {
		t.Error(diff)
	}
}

func TestVisualFramesAreReplacedByKeyAndDroppedOldestFirst(t *testing.T) {
	dropped := 0
	o := newOutbox(func() { dropped++ })
	o.put(Frame{Class: Visual, Key: "state", Data: []byte("old state")})
	o.put(Frame{Class: Visual, Data: []byte("pulse")})
	o.put(Frame{Class: Visual, Key: "state", Data: []byte("new state")})
	if diff := cmp.Diff([]string{"new state", "pulse"}, drain(o)); diff != "" || dropped != 1 {
		t.Errorf("%s dropped %d, want 1", diff, dropped)
	}
	for i := range outboxVisual + 2 {
		o.put(Frame{Class: Visual, Data: []byte{byte(i)}})
	}
	if first, _ := o.take(); first.Data[0] != 2 || dropped != 3 {
		t.Errorf("first frame left is %d, dropped %d; want 2 and 3", first.Data[0], dropped)
	}
}

func TestAnEssentialFrameWithoutRoomMeansASlowReader(t *testing.T) {
	o := newOutbox(func() {})
	for range outboxFrames {
		if got := o.put(Frame{Data: []byte("t")}); got != outboxTaken {
			t.Fatalf("put: %v", got)
		}
	}
	if got := o.put(Frame{Data: []byte("t")}); got != outboxFull {
		t.Errorf("one frame too many: %v, want outboxFull", got)
	}
	big := newOutbox(func() {})
	if big.put(Frame{Data: make([]byte, outboxBytes)}) != outboxTaken || big.put(Frame{Data: []byte("t")}) != outboxFull {
		t.Error("bytes are not bounded")
	}
	big.take()
	if big.put(Frame{Data: []byte("t")}) != outboxTaken {
		t.Error("taking a frame gives no room back")
	}
}

func TestAClosedOutboxTakesAndGivesNothing(t *testing.T) {
	o := newOutbox(func() {})
	o.put(Frame{Data: []byte("lost")})
	o.close()
	o.close()
	if _, ok := o.take(); ok {
		t.Error("a closed outbox gave a frame")
	}
	if got := o.put(Frame{}); got != outboxClosed {
		t.Errorf("put on a closed outbox: %v", got)
	}
}
