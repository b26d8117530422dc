package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"covey/daemon/doctor"
	"covey/web"
)

// mountSystem adds the page about machine and model; it is there while the model loads, and when it did not.
func (s *Server) mountSystem() { s.always("GET /system", s.serveSystem) }

func (s *Server) serveSystem(w http.ResponseWriter, r *http.Request) {
	v := web.System{Page: s.newPage(r, "system", "System")}
	v.Page.Banner = "" // the page says it better
	s.model.mu.Lock()
	done, total, took := s.model.done, s.model.total, s.model.took
	s.model.mu.Unlock()
	if _, err := s.Engine(); err != nil {
		e := AsError(err)
		v.Loading = &web.LoadState{Done: done, Total: total, Failed: e.Code != "loading", Message: sentence(e.Error()), Hint: sentence(e.Hint)}
		if !v.Loading.Failed {
			w.Header().Set("Refresh", "2")
		}
	} else {
		s.describe(&v, took)
	}
	v.Findings = s.examine(r.Context())
	uptime := time.Since(s.started).Round(time.Second)
	v.Process = []web.Fact{
		{Label: "Version", Value: s.version}, {Label: "Running for", Value: uptime.String()}, {Label: "Address", Value: s.Addr().String()},
		{Label: "Data", Value: s.cfg.Data}, {Label: "Browsers connected", Value: strconv.Itoa(s.hub.size())},
		{Label: "Go", Value: runtime.Version() + " on " + runtime.GOOS + "/" + runtime.GOARCH},
	}
	s.render(w, r, http.StatusOK, web.SystemPage(v))
}

// describe fills in the open model.
func (s *Server) describe(v *web.System, took time.Duration) {
	eng, err := s.Engine()
	if err != nil {
		return // it closed just now
	}
	info, st := eng.Model(), eng.Stats()
	v.Model = []web.Fact{
		{Label: "Name", Value: info.Name}, {Label: "Architecture", Value: info.Architecture},
		{Label: "Parameters", Value: fmt.Sprintf("%s, %s used for one token", millions(info.Parameters), millions(info.Active))},
		{Label: "Layers", Value: fmt.Sprintf("%d, %d of them with %d experts (top %d)", info.Layers, len(info.Shape.Layers), info.Shape.Experts, info.Shape.TopK)},
		{Label: "Context", Value: fmt.Sprintf("%d tokens", info.Context)}, {Label: "Vocabulary", Value: strconv.Itoa(info.Vocab)},
		{Label: "Hash", Value: info.Hash},
	}
	v.Engine = []web.Fact{
		{Label: "Numerics", Value: info.NumericsID + ": " + info.Numerics}, {Label: "Kernels", Value: info.ISA},
		{Label: "Threads", Value: strconv.Itoa(info.Threads)},
		{Label: "Weights read for one token", Value: web.Bytes(info.BytesPerToken) + " at batch 1 (computed)"},
		{Label: "Opened in", Value: fmt.Sprintf("%.1f s", took.Seconds())},
	}
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	weights := "all in RAM: every expert is a hit"
	if info.ExpertSlots > 0 {
		weights = fmt.Sprintf("room for %d of %d experts; the others are read from disk when a router chooses them", info.ExpertSlots, len(info.Shape.Layers)*info.Shape.Experts)
	}
	v.Memory = []web.MemoryPart{
		{Name: "Weights", Bytes: info.Bytes, Note: weights},
		{Name: "KV cache", Bytes: int64(st.KVTokensUsed) * info.KVBytes, Note: fmt.Sprintf("%d of %d tokens in use, form %s; %s when full", st.KVTokensUsed, st.KVTokens, cmp.Or(s.cfg.KV, "f16"), web.Bytes(int64(st.KVTokens)*info.KVBytes))},
		{Name: "Go heap", Bytes: int64(heap.HeapInuse), Note: "pages, history, tokenizer; measured now"},
	}
	v.Load = []web.Fact{
		{Label: "Sequences", Value: fmt.Sprintf("%d running, %d waiting", st.Running, st.Queued)},
		{Label: "Steps", Value: strconv.FormatUint(st.Steps, 10)},
		{Label: "Rows", Value: fmt.Sprintf("%d of answers, %d of prompts", st.DecodeRows, st.PrefillRows)},
		{Label: "Tokens generated", Value: strconv.FormatUint(st.Tokens, 10)},
		{Label: "Busy", Value: busy(st.BusyNanos, time.Since(s.started))},
		{Label: "Rows a busy second", Value: rowRate(st.Rows, st.BusyNanos)},
		{Label: "Routing events dropped", Value: strconv.FormatUint(st.RoutingDropped, 10)},
	}
}

func millions(n int64) string {
	if n >= 1e9 {
		return fmt.Sprintf("%.1f billion", float64(n)/1e9)
	}
	return fmt.Sprintf("%.0f million", float64(n)/1e6)
}

func busy(nanos int64, since time.Duration) string {
	if since <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s, %s of the time since the start", float64(nanos)/1e9, percentOf(min(1, float64(nanos)/float64(since))))
}

func rowRate(n uint64, nanos int64) string {
	if nanos <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f (measured since the start)", float64(n)/(float64(nanos)/1e9))
}

// examineFor bounds the doctor: a page waits for it.
const examineFor = 2 * time.Second

// examine asks the doctor, without the address, which this daemon itself holds.
func (s *Server) examine(ctx context.Context) []web.Finding {
	ctx, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	var out []web.Finding
	for _, f := range doctor.Examine(ctx, doctor.Options{Addr: s.Addr().String(), Data: s.cfg.Data, Model: s.cfg.Model, ISA: s.cfg.ISA, Threads: s.cfg.Threads}) {
		if f.Name == "address" {
			continue
		}
		out = append(out, web.Finding{Name: f.Name, Status: string(f.Status), Detail: f.Detail, Hint: f.Hint})
	}
	return out
}
