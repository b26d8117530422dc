package daemon

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"covey/engine"
)

// metrics are what /metrics shows: numbers only, never text of a user or a model. Each daemon has a registry of its
// own. The engine's numbers are read when asked for.
type metrics struct {
	registry           *prometheus.Registry
	requests           *prometheus.CounterVec
	requestSeconds     *prometheus.HistogramVec
	inFlight           prometheus.Gauge
	refused            *prometheus.CounterVec
	connectionsRefused prometheus.Counter
	socketsSlow        prometheus.Counter
	framesDropped      prometheus.Counter
	generations        *prometheus.CounterVec
	promptTokens       prometheus.Counter
	answerTokens       prometheus.Counter
	firstToken         prometheus.Histogram
	tokenSeconds       prometheus.Histogram
}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "covey", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "covey", Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counters("http_requests_total", "HTTP requests by route pattern and status.", "route", "status"),
		requestSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "covey", Name: "http_request_seconds",
			Help: "Time of HTTP requests, streams included.", Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60, 300}}, []string{"route"}),
		inFlight:           prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "covey", Name: "http_in_flight", Help: "HTTP requests being served."}),
		refused:            counters("refused_total", "Requests and sockets refused by the authenticator, by reason.", "reason"),
		connectionsRefused: counter("connections_refused_total", "TCP connections closed because too many were open."),
		socketsSlow:        counter("sockets_slow_total", "Sockets closed because the browser read too slowly."),
		framesDropped:      counter("socket_frames_dropped_total", "Visual frames dropped or replaced by newer ones."),
		generations:        counters("generations_total", "Finished generations by origin (api, chat) and finish reason.", "origin", "finish"),
		promptTokens:       counter("prompt_tokens_total", "Prompt tokens of finished generations."),
		answerTokens:       counter("answer_tokens_total", "Answer tokens of finished generations."),
		firstToken: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "covey", Name: "first_token_seconds",
			Help: "Time from submit to the first answer token.", Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300}}),
		tokenSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "covey", Name: "token_seconds",
			Help: "Mean time of an answer token after the first, one observation a generation.", Buckets: []float64{.002, .005, .01, .02, .05, .1, .2, .5, 1, 5}}),
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "covey", Name: name, Help: help}, read)
	}
	m.registry.MustRegister(m.requests, m.requestSeconds, m.inFlight, m.refused, m.connectionsRefused, m.socketsSlow, m.framesDropped,
		m.generations, m.promptTokens, m.answerTokens, m.firstToken, m.tokenSeconds,
		gauge("sockets", "Open WebSockets.", func() float64 { return float64(s.hub.size()) }),
		gauge("storage_read_only", "1 while the disk refuses writes.", func() float64 { return truth(s.store.ReadOnly() != nil) }),
		engineCollector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) frameDropped() { m.framesDropped.Inc() }

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// engineCollector reads engine.Stats when scraped.
type engineCollector struct{ server *Server }

var (
	descReady     = prometheus.NewDesc("covey_ready", "1 once the model is loaded.", nil, nil)
	descModel     = prometheus.NewDesc("covey_model_info", "The model, its numerics and kernels.", []string{"model", "numerics_id", "isa"}, nil)
	descRunning   = prometheus.NewDesc("covey_sequences_running", "Sequences that take part in steps.", nil, nil)
	descQueued    = prometheus.NewDesc("covey_sequences_queued", "Requests that wait.", nil, nil)
	descKVUsed    = prometheus.NewDesc("covey_kv_tokens_used", "Tokens held in the KV cache.", nil, nil)
	descKV        = prometheus.NewDesc("covey_kv_tokens", "Capacity of the KV cache in tokens.", nil, nil)
	descSteps     = prometheus.NewDesc("covey_steps_total", "Forward steps.", nil, nil)
	descRows      = prometheus.NewDesc("covey_rows_total", "Rows of those steps by kind.", []string{"kind"}, nil)
	descGenerated = prometheus.NewDesc("covey_tokens_generated_total", "Tokens sampled.", nil, nil)
	descBusy      = prometheus.NewDesc("covey_busy_seconds_total", "Time spent inside steps.", nil, nil)
	descExperts   = prometheus.NewDesc("covey_experts_total", "Experts that steps needed, where they are read on demand: found in memory (hit) or read (miss).", []string{"where"}, nil)
	descRead      = prometheus.NewDesc("covey_expert_read_bytes_total", "Bytes of experts read on demand.", nil, nil)
	descWaited    = prometheus.NewDesc("covey_expert_wait_seconds_total", "Time that steps waited for experts.", nil, nil)
	descRouting   = prometheus.NewDesc("covey_routing_events_dropped_total", "Routing events not delivered to a slow subscriber.", nil, nil)
)

func (c engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descModel, descRunning, descQueued, descKVUsed, descKV, descSteps, descRows, descGenerated, descBusy, descExperts, descRead, descWaited, descRouting} {
		ch <- d
	}
}

func (c engineCollector) Collect(ch chan<- prometheus.Metric) {
	eng, err := c.server.Engine()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	put(descReady, prometheus.GaugeValue, truth(err == nil))
	if err != nil {
		return
	}
	info, st := eng.Model(), eng.Stats()
	put(descModel, prometheus.GaugeValue, 1, info.ID, info.NumericsID, info.ISA)
	put(descRunning, prometheus.GaugeValue, float64(st.Running))
	put(descQueued, prometheus.GaugeValue, float64(st.Queued))
	put(descKVUsed, prometheus.GaugeValue, float64(st.KVTokensUsed))
	put(descKV, prometheus.GaugeValue, float64(st.KVTokens))
	put(descSteps, prometheus.CounterValue, float64(st.Steps))
	put(descRows, prometheus.CounterValue, float64(st.DecodeRows), "decode")
	put(descRows, prometheus.CounterValue, float64(st.PrefillRows), "prefill")
	put(descGenerated, prometheus.CounterValue, float64(st.Tokens))
	put(descBusy, prometheus.CounterValue, float64(st.BusyNanos)/1e9)
	put(descExperts, prometheus.CounterValue, float64(st.ExpertHits), "hit")
	put(descExperts, prometheus.CounterValue, float64(st.ExpertMisses), "miss")
	put(descRead, prometheus.CounterValue, float64(st.ExpertBytes))
	put(descWaited, prometheus.CounterValue, float64(st.ExpertNanos)/1e9)
	put(descRouting, prometheus.CounterValue, float64(st.RoutingDropped))
}

// finished counts one generation. origin is api or chat.
func (m *metrics) finished(origin string, r *engine.Result) {
	m.generations.WithLabelValues(origin, r.Finish).Inc()
	m.promptTokens.Add(float64(r.PromptTokens))
	m.answerTokens.Add(float64(len(r.Tokens)))
	if len(r.Tokens) > 0 {
		m.firstToken.Observe(float64(r.QueueNanos+r.PrefillNanos) / 1e9)
	}
	if n := len(r.Tokens) - 1; n > 0 {
		m.tokenSeconds.Observe(float64(r.DecodeNanos) / 1e9 / float64(n))
	}
}
