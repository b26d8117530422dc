package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"covey/web"
	"covey/web/wire"
)

// storageRetry is how often storage that refused a write is tried again.
const storageRetry = 5 * time.Second

// storage tells open pages that the history cannot be written, and that it can again. Safe for concurrent use.
type storage struct {
	refused  atomic.Bool // a write since the start: pages may show it
	retrying atomic.Bool
}

// storageChanged follows the store (Store.Watch): err is why it refuses writes, nil = it takes them again.
func (s *Server) storageChanged(err error) {
	s.storage.refused.Store(true)
	s.hub.each(func(c *Conn) { s.showStorage(c, err) })
	if err != nil && s.storage.retrying.CompareAndSwap(false, true) && !s.Go(s.retryStorage) {
		s.storage.retrying.Store(false)
	}
}

// showStorage brings the banner of a page up to date.
func (s *Server) showStorage(c *Conn, err error) {
	var b strings.Builder
	if err := web.StorageBanner(storageText(err)).Render(context.Background(), &b); err != nil {
		s.log.Error("rendering the storage's banner", slog.Any("err", err))
		return
	}
	c.Send(Frame{Text: true, Data: wire.Patch{Op: wire.Inner, Target: "storage", HTML: b.String()}.Append(nil)})
}

// storageText says why the history cannot be written; "" for nil.
func storageText(err error) string {
	if err == nil {
		return ""
	}
	return "The history cannot be written (" + err.Error() + "). Free space on the disk; nothing new is kept until then."
}

// retryStorage writes a little every few seconds until that succeeds: nobody else may have anything to write.
func (s *Server) retryStorage(ctx context.Context) {
	defer s.storage.retrying.Store(false)
	tick := time.NewTicker(storageRetry)
	defer tick.Stop()
	for s.store.ReadOnly() != nil {
		select {
		case <-tick.C:
			_ = s.store.SetSetting(ctx, "storage.tried", time.Now().Unix()) // the store says how it went
		case <-ctx.Done():
			return
		}
	}
}
