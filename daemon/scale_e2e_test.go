package daemon

// The pages about experts in a real browser at sizes and in conditions that the bundled model does not have: 20,000
// cells, no WebGL; and, on a daemon as it is, an examination of every page by axe-core.

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/gorilla/websocket"

	"covey/store"
	"covey/web"
	"covey/web/wire"
)

// bigModel is the shape of a model with 20,224 routed experts.
func bigModel() wire.Shape {
	s := wire.Shape{TopK: 8, Experts: 256}
	for layer := range 79 {
		s.Layers = append(s.Layers, layer+3)
	}
	return s
}

// bigSurvey is what is known of its experts: skewed counts, two topics of an atlas.
func bigSurvey(s wire.Shape) wire.Map {
	random := rand.New(rand.NewPCG(1, 2))
	n := len(s.Layers) * s.Experts
	values := func(f func() float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(f())
		}
		return v
	}
	topic := func(name string) wire.MapTopic {
		t := wire.MapTopic{Topic: name, Lift: values(func() float64 { return math.Exp(random.NormFloat64()) })}
		t.Low, t.High = make([]float32, n), make([]float32, n)
		for i, v := range t.Lift {
			t.Low[i], t.High[i] = v*0.7, v*1.4
		}
		return t
	}
	return wire.Map{
		Shape: s, Selections: values(func() float64 { return math.Floor(math.Exp(8 * random.Float64())) }), Ages: values(func() float64 { return 1e5 * random.Float64() }),
		Atlas: "big", Name: "big", Topics: []wire.MapTopic{topic("code"), topic("law")}, Specificity: values(random.Float64), Q: values(random.Float64),
	}
}

// bigServer serves the map of the big model as the daemon does, with pulses of 200 tokens a second.
func bigServer(t *testing.T) string {
	t.Helper()
	shape := bigModel()
	survey := bigSurvey(shape)
	mux := http.NewServeMux()
	mux.Handle("GET /static/", web.Assets())
	mux.HandleFunc("GET /experts", func(w http.ResponseWriter, r *http.Request) {
		secureHeaders(w.Header(), false)
		view := web.ExpertMap{Page: web.Page{Title: "Experts", Section: "experts", Token: "t", Model: "big", Loading: -1}, Layers: shape.Layers, Experts: shape.Experts,
			TopK: shape.TopK, Selections: make([]int64, len(shape.Layers)*shape.Experts), Atlas: "big", AtlasName: "big"}
		for id := range shape.Experts {
			view.Rows = append(view.Rows, web.MapRow{Expert: id})
		}
		if err := web.MapPage(view).Render(r.Context(), w); err != nil {
			t.Error(err)
		}
	})
	upgrader := websocket.Upgrader{}
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer ws.Close()
		commands := make(chan wire.Command)
		done := make(chan struct{})
		defer close(done)
		go func() {
			defer close(commands)
			for {
				_, raw, err := ws.ReadMessage()
				if err != nil {
					return
				}
				c, err := wire.DecodeCommand(raw)
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case commands <- c:
				case <-done:
					return
				}
			}
		}()
		random := rand.New(rand.NewPCG(3, 4))
		tick := time.NewTicker(pulseEvery)
		defer tick.Stop()
		following, number := false, 0
		for {
			var out []byte
			select {
			case c, ok := <-commands:
				if !ok {
					return
				}
				switch c.Name {
				case wire.Hello:
					out = wire.Welcome{Version: wire.Version, Boot: "b", Model: "big", Context: 4096, Shape: shape}.Append(nil)
				case wire.Survey:
					out = survey.Append(nil)
				case wire.Trace:
					out = wire.Traced{Tokens: 3, Cells: []wire.Pulse{{Cell: 5, Count: 3}, {Cell: 300, Count: 1}}}.Append(nil)
				case wire.Follow:
					following = true
				case wire.Ping:
					out = wire.Pong()
				}
				if out != nil && ws.WriteMessage(websocket.BinaryMessage, out) != nil {
					return
				}
				if c.Seq != 0 && ws.WriteMessage(websocket.BinaryMessage, wire.Ack{Seq: c.Seq}.Append(nil)) != nil {
					return
				}
			case <-tick.C:
				if !following {
					continue
				}
				number++
				p := wire.Pulses{Number: number, Rows: 20, Sequences: 1}
				for cell := range len(shape.Layers) * shape.Experts {
					if random.IntN(2) == 0 { // 20 tokens choose 160 of 256 experts of a layer, some of them twice
						p.Cells = append(p.Cells, wire.Pulse{Cell: cell, Count: 1})
					}
				}
				if ws.WriteMessage(websocket.BinaryMessage, p.Append(nil)) != nil {
					return
				}
			}
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// watchTasks counts what the browser calls long tasks: over 50 ms on the main thread.
const watchTasks = `window.tasks = []; new PerformanceObserver(l => { for (const e of l.getEntries()) window.tasks.push(Math.round(e.duration)) }).observe({type: "longtask"}); true`

// walkMap goes through everything that the map does by itself.
func walkMap(b *tab) {
	b.t.Helper()
	choose := func(id, value string) {
		b.t.Helper()
		eval[bool](b, `(() => { const s = document.getElementById("`+id+`"); s.value = "`+value+`"; s.dispatchEvent(new Event("change", {bubbles: true})); return true })()`)
		time.Sleep(150 * time.Millisecond) // some paints under pulses
	}
	for _, mode := range []string{"heat", "recency", "imbalance", "topic", "specificity", "q", "difference"} {
		choose("map-mode", mode)
		b.until(`document.querySelectorAll(".legend-step").length > 1`)
		for _, sort := range []string{"value", "topic", "id"} {
			choose("map-sort", sort)
		}
	}
	b.do(chromedp.Focus(chromedp.CSS("#map-over")))
	for range 4 {
		b.press("ArrowRight", "ArrowRight", 39, 0)
		b.press("+", "Equal", 187, 0)
	}
	b.press("0", "Digit0", 48, 0)
	b.do(chromedp.SendKeys(chromedp.CSS("#map-search"), "the sea"))
	b.until(`!document.getElementById("map-trace").hidden`)
	b.press("Enter", "Enter", 13, 0)
	b.until(`document.getElementById("map-mode").value === "text"`)
	b.until(`/Selections by the text/.test(document.getElementById("map-legend").innerText)`)
}

func TestTheMapOfTwentyThousandExpertsIsSortedSearchedAndLit(t *testing.T) {
	address := bigServer(t)
	b := openBrowser(t)()
	b.do(chromedp.EmulateViewport(1280, 900))
	b.theme("dark")
	b.do(chromedp.Navigate(address + "/experts?renderer=webgl2"))
	b.live()
	b.until(`document.getElementById("experts").dataset.lit > 9000`)
	eval[bool](b, watchTasks)
	walked := b.during(func() { walkMap(b) })
	b.shoot("map-20000-dark")
	t.Logf("with %s: colours of 20,224 cells in %s us; walking through all modes and orders: %s; the page's observer saw (ms) %s",
		eval[string](b, `document.getElementById("experts").dataset.renderer`), eval[string](b, `document.getElementById("experts").dataset.updateUs`),
		walked, eval[string](b, `JSON.stringify(window.tasks)`))
	b.healthy()
}

func TestTheMapIsDrawnWithoutWebGL(t *testing.T) {
	address := bigServer(t)
	b := openBrowser(t)() // its WebGL is the processor's
	b.do(chromedp.EmulateViewport(1280, 900))
	b.do(chromedp.Navigate(address + "/experts"))
	b.live()
	b.until(`document.getElementById("experts").dataset.lit > 9000`)
	if name := eval[string](b, `document.getElementById("experts").dataset.renderer`); name != "canvas" {
		t.Fatalf("drawn with %q", name)
	}
	eval[bool](b, watchTasks)
	walked := b.during(func() { walkMap(b) })
	colours := eval[int](b, `(() => { const c = document.getElementById("map"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data; const s = new Set(); for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i+1] << 8 | d[i+2]); return s.size; })()`)
	if colours < 3 {
		t.Errorf("the canvas has %d colours", colours)
	}
	t.Logf("walking through all modes and orders: %s; the page's observer saw (ms) %s", walked, eval[string](b, `JSON.stringify(window.tasks)`))
	b.shoot("map-canvas-light")
	b.healthy()
}

// axe is the source of axe-core.
func axe(t *testing.T) string {
	t.Helper()
	file, err := os.Open("../web/testdata/axe/axe-4.11.0.min.js.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpack, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	source, err := io.ReadAll(unpack)
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// examine fails the test for every serious or critical violation on the page as it is.
func examine(b *tab, source, name string) {
	b.t.Helper()
	eval[bool](b, source+";true")
	eval[bool](b, `window.axeDone = null; axe.run(document, {resultTypes: ["violations"]}).then(r => { window.axeDone = r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v => v.id + " (" + v.impact + "): " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + " " + (n.any[0]?.message || "")).join(" | ")) }, e => { window.axeDone = ["axe failed: " + e] }); true`)
	b.until("window.axeDone")
	for _, v := range eval[[]string](b, "window.axeDone") {
		b.t.Errorf("%s: %s", name, v)
	}
}

func TestEveryPageFitsItsScreenAndHasNoSeriousBarrierInEitherTheme(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	file, err := os.ReadFile("../atlas/testdata/small.atlas.json")
	if err != nil {
		t.Fatal(err)
	}
	code, header, body := d.do("POST", "/atlas/import?name=small.json", string(file), "Authorization", "Bearer "+d.token)
	if code != 303 {
		t.Fatalf("import: %d %.200s", code, body)
	}
	atlas := header.Get("Location")
	code, header, body = d.do("POST", "/atlas/import?name=twin.json", string(file), "Authorization", "Bearer "+d.token)
	if code != 303 {
		t.Fatalf("import: %d %.200s", code, body)
	}
	v := d.viewer()
	conversation, message := v.begin("Something about herons.", 8)
	v.finish(message)
	pages := map[string]string{
		"new": "/", "chat": "/c/" + conversation, "tokens": "/c/" + conversation + "/tokens/" + message, "map": "/experts", "map-turn": "/experts?turn=" + message,
		"atlases": "/atlas", "atlas": atlas, "atlas-all": atlas + "?all=1", "expert": atlas + "/expert/1/0", "jobs": "/jobs", "system": "/system", "settings": "/settings",
		"compare":        "/atlas/compare?a=" + strings.TrimPrefix(atlas, "/atlas/") + "&b=" + strings.TrimPrefix(header.Get("Location"), "/atlas/"),
		"compare-topics": "/atlas/compare?a=" + strings.TrimPrefix(atlas, "/atlas/") + "&b=" + strings.TrimPrefix(atlas, "/atlas/"),
	}
	source := axe(t)
	b := openBrowser(t)()
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		for _, width := range []int{1440, 360} {
			b.do(chromedp.EmulateViewport(int64(width), 2400)) // tall: a picture shows all of a page
			for name, path := range pages {
				b.do(chromedp.Navigate(d.base + path))
				b.live()
				if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%s is %d pixels wide on a screen of %d", path, wide, width)
				}
				if width > 1000 {
					examine(b, source, theme+" "+path)
				}
				b.shoot(fmt.Sprintf("page-%s-%d-%s", name, width, theme))
			}
		}
	}
}

func TestAConversationOf250MessagesScrolls(t *testing.T) {
	d := modelDaemon(t)
	ctx := context.Background()
	c, err := d.store.CreateConversation(ctx, "long", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	parent := ""
	for i := range 250 {
		role, text := store.RoleUser, fmt.Sprintf("Question %d about lighthouses?", i)
		if i%2 == 1 {
			role, text = store.RoleAssistant, fmt.Sprintf("Answer %d.\n\n", i)+strings.Repeat("The lamp turns and the sea is *dark*; `keeper()` writes it down.\n\n- one\n- two\n\n```go\nfunc keeper() int { return 7 }\n```\n\n", 3)
		}
		m, err := d.store.AddMessage(ctx, c.ID, parent, role, text)
		if err != nil {
			t.Fatal(err)
		}
		parent = m.ID
	}
	b := openBrowser(t)()
	b.do(chromedp.EmulateViewport(1280, 900))
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	b.do(chromedp.Navigate(d.base + "/c/" + c.ID))
	b.live()
	if n := eval[int](b, `document.querySelectorAll(".msg").length`); n != 250 {
		t.Fatalf("%d messages are shown", n)
	}
	scrolled := b.during(func() {
		for range 120 { // 33,000 pixels a second, several times what a wheel gives
			eval[bool](b, `(document.getElementById("scroll").scrollBy(0, -500), true)`)
			time.Sleep(15 * time.Millisecond)
		}
	})
	if !eval[bool](b, `!document.getElementById("jump").hidden`) {
		t.Error("far from its end the conversation offers no way back to it")
	}
	t.Logf("scrolling up through %s", scrolled)
	b.healthy()
}
