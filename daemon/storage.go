package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"covey/web"
	"covey/web/wire"
)

// storageRetry is how often storage that refused a write is tried again.
const storageRetry = 5 * time.Second

// storage tells open pages that the history cannot be written, and that it can again. Whoever shows a state asks for it under
// mu, so that the last frame of each page says what holds, in whatever order the news come. Safe for concurrent use.
type storage struct {
	mu       sync.Mutex
	state    func() error // Store.ReadOnly
	refused  bool         // a write since the start: pages may show it
	retrying bool
}

// storageChanged brings all pages up to date (Store.Watch), and sees to it that storage which refuses writes is tried again.
func (s *Server) storageChanged(error) {
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	s.storage.refused = true
	err := s.storage.state()
	frame := s.storageBanner(err)
	s.hub.each(func(c *Conn) { c.Send(frame) })
	if err != nil && !s.storage.retrying {
		s.storage.retrying = s.Go(s.retryStorage)
	}
}

// showStorage brings one page up to date, which may be older than the last change.
func (s *Server) showStorage(c *Conn) {
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	if s.storage.refused {
		c.Send(s.storageBanner(s.storage.state()))
	}
}

// storageBanner is the patch of a page's banner.
func (s *Server) storageBanner(err error) Frame {
	var b strings.Builder
	if err := web.StorageBanner(storageText(err)).Render(context.Background(), &b); err != nil {
		s.log.Error("rendering the storage's banner", slog.Any("err", err))
	}
	return Frame{Text: true, Data: wire.Patch{Op: wire.Inner, Target: "storage", HTML: b.String()}.Append(nil)}
}

// storageText says why the history cannot be written; "" for nil.
func storageText(err error) string {
	if err == nil {
		return ""
	}
	return "The history cannot be written (" + err.Error() + "). Free space on the disk, or make the data folder writable; nothing new is kept until then."
}

// retryStorage writes a little every few seconds until that succeeds: nobody else may have anything to write.
func (s *Server) retryStorage(ctx context.Context) {
	tick := time.NewTicker(storageRetry)
	defer tick.Stop()
	for s.storageRefuses() {
		select {
		case <-tick.C:
			_ = s.store.SetSetting(ctx, "storage.tried", time.Now().Unix()) // the store says how it went
		case <-ctx.Done():
			return
		}
	}
}

// storageRefuses says whether there is something to try again; where there is not, the next change starts anew.
func (s *Server) storageRefuses() bool {
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	s.storage.retrying = s.storage.state() != nil
	return s.storage.retrying
}
