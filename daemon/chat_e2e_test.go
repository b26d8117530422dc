package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"covey/web"
	"covey/web/wire"
)

// tab is one page of a real browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // console errors, exceptions, refusals by the content policy
}

// openBrowser starts a headless browser and returns a function that opens tabs in it. Where there is none the test is
// skipped, except in CI, where it must not pass unseen. with are further options of the browser.
func openBrowser(t *testing.T, with ...chromedp.ExecAllocatorOption) func() *tab {
	t.Helper()
	if !web.Assets().Built() {
		t.Fatal("the browser client is not built: run make wasm")
	}
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("no Chromium here: the end-to-end tests cannot run")
		}
		t.Skip("NO CHROMIUM FOUND: THE END-TO-END TESTS DID NOT RUN. Install chromium to run them.")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox)
	options = append(options, with...)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	root, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(root, chromedp.Navigate("about:blank")); err != nil { // the first call's context owns the browser
		t.Fatal(err)
	}
	return func() *tab {
		ctx, cancel := chromedp.NewContext(root)
		t.Cleanup(cancel)
		b := &tab{t: t, ctx: ctx}
		if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // likewise the tab: no bound that ends
			t.Fatal(err)
		}
		if err := chromedp.Listen(ctx, b.listen); err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// listen collects what went wrong in the page.
func (b *tab) listen(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" {
			fault = "console:"
			for _, a := range e.Args {
				fault += " " + string(a.Value) + a.Description
			}
		}
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Text
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" {
			fault = "log: " + e.Entry.Text
		}
	}
	if fault != "" {
		b.mu.Lock()
		b.faults = append(b.faults, fault)
		b.mu.Unlock()
	}
}

// patience bounds one action. The browser may drop a reply for good (a page that is left while it evaluates, a renderer
// that died), and an action without a bound would then hold the whole test run.
const patience = time.Minute

// run performs one action in a tab, for at most limit.
func run[T any](b *tab, limit time.Duration, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeoutCause(b.ctx, limit, fmt.Errorf("the browser did not answer for %v", limit))
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return v, err
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, action := range actions {
		if _, err := run(b, patience, action); err != nil {
			b.t.Fatal(err)
		}
	}
}

// eval evaluates a JavaScript expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := run(b, patience, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for a JavaScript condition; the page's text is the report if it never holds.
func (b *tab) until(condition string) {
	b.t.Helper()
	b.within(patience, condition)
}

// within is until for what takes longer: a batch of texts.
func (b *tab) within(d time.Duration, condition string) {
	b.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if v, err := run(b, 5*time.Second, chromedp.Evaluate[bool]("!!("+condition+")")); err == nil && v {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	text, _ := run(b, 5*time.Second, chromedp.Evaluate[string]("document.body.innerText"))
	b.t.Fatalf("never: %s\nfaults: %q\npage:\n%s", condition, b.faults, text)
}

// live waits until the page's client is connected.
func (b *tab) live() {
	b.t.Helper()
	b.until(`document.getElementById("link")?.dataset.state === "on"`)
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.until(fmt.Sprintf("document.querySelector(%q)", selector))
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// stop ends the running answer, which may end by itself before the button is reached.
func (b *tab) stop() {
	b.t.Helper()
	b.until("!" + running + ` || (document.getElementById("stop").click(), false)`)
}

// press sends one key as a keyboard does: a key that a handler has taken writes no text.
func (b *tab) press(name, code string, virtual int64, modifiers chromedp.Modifier) {
	b.t.Helper()
	_, err := run(b, patience, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for _, kind := range []input.DispatchKeyEventType{"rawKeyDown", "keyUp"} {
			if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, input.DispatchKeyEventParams{
				Type: kind, Key: name, Code: code, WindowsVirtualKeyCode: virtual, Modifiers: int64(modifiers),
			}); err != nil {
				return chromedp.Void{}, err
			}
		}
		return chromedp.Void{}, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) theme(name string) {
	b.t.Helper()
	_, err := run(b, patience, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
		})
		return chromedp.Void{}, err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// shoot writes a picture for people to look at.
func (b *tab) shoot(name string) {
	b.t.Helper()
	dir := filepath.Join("..", "artefacts")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	png, err := run(b, patience, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// healthy fails the test if anything went wrong in the page.
func (b *tab) healthy() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) > 0 {
		b.t.Errorf("the page reports %q", b.faults)
	}
}

const (
	running    = `document.querySelector('.msg-answer[data-state="running"]')`
	answerText = `document.querySelector(".msg-answer").querySelector(".prose").innerText + document.querySelector(".open-text").innerText`
	litCells   = `(() => { const c = document.getElementById("grid"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()`
)

func TestAPersonChatsInABrowser(t *testing.T) {
	d := modelDaemon(t)
	b := openBrowser(t)()
	b.do(chromedp.EmulateViewport(1280, 800))
	b.theme("light")
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	b.shoot("chat-empty-light")

	// Write and send by keyboard. The answer streams and the experts light up.
	b.do(chromedp.SendKeys(chromedp.CSS("#draft"), "Write a long story about a fox and a crow."))
	b.press("Enter", "Enter", 13, 0)
	b.until(running)
	b.until(`document.querySelector(".open-text").innerText.length > 20`)
	if draft := eval[string](b, `document.getElementById("draft").value`); draft != "" {
		t.Errorf("the message box still holds %q", draft)
	}
	b.until(litCells + " > 29") // more than one layer's
	if path := eval[string](b, "location.pathname"); !strings.HasPrefix(path, "/c/") {
		t.Errorf("the new conversation has the address %s", path)
	}

	// Reload: the conversation is there, and the answer goes on.
	before := eval[int](b, "("+answerText+").length")
	b.do(chromedp.Reload())
	b.live()
	b.until(running)
	if n := eval[int](b, "("+answerText+").length"); n < before {
		t.Errorf("%d characters after the reload, %d before", n, before)
	}
	b.until(fmt.Sprintf("(%s).length > %d", answerText, before+40))
	b.shoot("chat-running-light")

	// Stop by Esc: the text stays and is marked.
	b.press("Escape", "Escape", 27, 0)
	b.until("!" + running)
	b.until(`document.querySelector(".chip")?.innerText === "Stopped"`)
	b.until(`document.querySelector(".stats")`)
	if eng, err := d.Engine(); err != nil || eng.Stats().Running != 0 {
		t.Errorf("the engine still runs after Stop (error %v)", err)
	}

	// Another answer, and the arrows between the two.
	b.click(`[data-action="regenerate"]`)
	b.until(running)
	b.until(`document.querySelector(".open-text").innerText.length > 5`)
	b.stop()
	b.until(`document.querySelector(".msg-answer .branches .num")?.innerText === "2/2"`)
	b.click(".msg-answer .branches button")
	b.until(`document.querySelector(".msg-answer .branches .num")?.innerText === "1/2"`)

	// The token view, by keyboard: probability, alternatives, experts.
	b.click(`[data-action="tokens"]`)
	b.until(`document.querySelectorAll(".token-list [data-i]").length > 3`)
	b.do(chromedp.Focus(chromedp.CSS(".token-list")))
	b.press("Home", "Home", 36, 0)
	b.until(`document.querySelector(".token-current")?.dataset.i === "0"`)
	b.press("ArrowRight", "ArrowRight", 39, 0)
	b.until(`document.querySelector(".token-current")?.dataset.i === "1"`)
	b.until(`document.querySelectorAll(".bars li").length === 5`)
	if layers := eval[int](b, `document.querySelectorAll(".layers tr").length`); layers != 29 {
		t.Errorf("the card lists %d layers", layers)
	}
	if lit := eval[int](b, litCells); lit != 29*4 {
		t.Errorf("%d cells are lit for one token, want 116", lit)
	}
	b.shoot("chat-tokens-light")
	shade := func(by string) {
		eval[bool](b, fmt.Sprintf(`(() => { const s = document.querySelector('[data-change="shade"]'); s.value = %q; s.dispatchEvent(new Event("change", {bubbles: true})); return true })()`, by))
	}
	shade("entropy")
	b.until(`document.querySelectorAll(".token-list [data-i]:not(.s0)").length > 0`)
	shade("topic") // of the newest atlas of the model, if another test has made one
	b.until(`/no atlas of this model yet|chinese|law/.test(document.querySelector("[data-topics]").innerText)`)

	// A text file that is dropped on the page is put into the message.
	// Several are taken one after another, and one that is no text is refused by name.
	eval[bool](b, `(() => { const d = new DataTransfer();
		d.items.add(new File([new Uint8Array([137, 80, 78, 71, 0, 1])], "fox.png"));
		d.items.add(new File(["Foxes are clever.\n"], "fox.txt"));
		d.items.add(new File(["So are crows."], "crow.txt"));
		document.getElementById("log").dispatchEvent(new DragEvent("drop", {dataTransfer: d, bubbles: true, cancelable: true})); return true })()`)
	b.until(`document.getElementById("draft").value === "fox.txt:\n\nFoxes are clever.\n\ncrow.txt:\n\nSo are crows.\n" && /fox.png is not a text file/.test(document.body.innerText)`)
	eval[bool](b, `(() => { const f = document.getElementById("draft"); f.value = ""; f.dispatchEvent(new Event("input", {bubbles: true})); return true })()`)
	b.theme("dark")
	b.shoot("chat-tokens-dark")

	// After a reload the token view works from what was stored.
	b.do(chromedp.Reload())
	b.live()
	b.click(`[data-action="tokens"]`)
	b.until(`document.querySelectorAll(".token-list [data-i]").length > 3`)
	b.click(`[data-action="tokens"]`)

	// A telephone.
	b.do(chromedp.EmulateViewport(360, 740))
	if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the page is %d pixels wide on a screen of 360", wide)
	}
	b.shoot("chat-phone-dark")
	b.healthy()
}

func TestTwoTabsShowTheSameAnswer(t *testing.T) {
	d := modelDaemon(t)
	open := openBrowser(t)
	first, second := open(), open()
	first.do(chromedp.Navigate(d.Link()))
	first.live()
	first.do(chromedp.SendKeys(chromedp.CSS("#draft"), "Write a long story about two bears."))
	first.press("Enter", "Enter", 13, 0)
	first.until(running)
	address := eval[string](first, "location.href")
	second.do(chromedp.Navigate(address))
	second.live()
	second.until(running)
	second.until(`document.querySelector(".open-text").innerText.length > 20`)
	second.stop()
	for _, b := range []*tab{first, second} {
		b.until("!" + running)
		b.until(`document.querySelector(".stats")`)
	}
	if one, two := eval[string](first, answerText), eval[string](second, answerText); one != two {
		t.Errorf("the tabs show different texts:\n%q\n%q", one, two)
	}
	first.healthy()
	second.healthy()
}

func TestATabLearnsWhatAnotherDidToItsConversation(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Something about walruses.", 8)
	v.finish(message)
	open := openBrowser(t)
	first, second := open(), open()
	first.do(chromedp.Navigate(d.Link()))
	first.live()
	for _, b := range []*tab{first, second} {
		b.do(chromedp.Navigate(d.base + "/c/" + conversation))
		b.live()
	}
	v.ask(wire.Rename, conversation, "Whiskers")
	for _, b := range []*tab{first, second} {
		b.until(`document.getElementById("chat-title").innerText === "Whiskers" && document.title === "Whiskers - Covey"`)
	}
	second.do(chromedp.SendKeys(chromedp.CSS("#draft"), "And seals?"))
	second.until(`!document.getElementById("send").disabled`)

	first.press("D", "KeyD", 68, chromedp.ModifierCtrl|chromedp.ModifierShift)
	first.until(`location.pathname === "/"`)
	second.until(`/deleted in another tab/.test(document.getElementById("gone").innerText) && document.getElementById("send").disabled`)
	second.shoot("chat-deleted-light")
	if _, failure := v.try(wire.Send, conversation, "And seals?"); failure == nil || failure.Code != "not_found" {
		t.Errorf("a message in a deleted conversation: %+v, want not_found", failure)
	}
	second.click(`#gone [data-action="restore"]`)
	second.until(`document.getElementById("gone").innerText === "" && !document.getElementById("send").disabled`)
	first.healthy()
	second.healthy()
}

func TestTheBannerOfFullStorageComesAndGoesByItself(t *testing.T) {
	d := modelDaemon(t)
	b := openBrowser(t)()
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	d.pretend(func() error { return errors.New("the disk is full") })
	d.storageChanged(nil)
	b.until(`/cannot be written \(the disk is full\)/.test(document.getElementById("storage").innerText)`)
	d.pretend(d.store.ReadOnly)
	d.storageChanged(nil)
	b.until(`document.getElementById("storage").innerText === ""`)
	b.healthy()
}

func TestConversationsAreManagedInABrowser(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Something about narwhals.", 8)
	v.finish(message)
	b := openBrowser(t)()
	b.do(chromedp.EmulateViewport(1280, 800))
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	item := "#c-" + conversation

	// Search by keyboard.
	b.press("k", "KeyK", 75, chromedp.ModifierCtrl)
	b.until(`document.activeElement.id === "search"`)
	b.do(chromedp.SendKeys(chromedp.CSS("#search"), "narwhals"))
	b.until(`document.querySelector("#list .snippet mark")?.innerText === "narwhals"`)
	b.press("Escape", "Escape", 27, 0)
	b.until(`!document.querySelector("#list .snippet")`)

	// Rename.
	b.click(item + " .item-more")
	b.click(`#item-menu [data-action="rename"]`)
	b.until(`document.getElementById("rename-dialog").open`)
	b.do(chromedp.SetValue(chromedp.CSS("#rename-dialog input"), "Tusks"))
	b.click(`[data-action="save-rename"]`)
	b.until(fmt.Sprintf(`document.querySelector(%q)?.innerText === "Tusks"`, item+" .item-name"))

	// Settings: what departs from the model's defaults is counted.
	b.click(item + " a")
	b.until(`location.pathname !== "/"`) // the page that is left is live too
	b.live()
	b.click(`[data-action="settings"]`)
	b.do(chromedp.SetValue(chromedp.CSS("#set-top_k"), "40"))
	b.click(`[data-action="save-settings"]`)
	b.until(`!document.getElementById("settings-dialog").open && document.getElementById("changed").innerText === "3"`) // temperature and length were set before
	b.shoot("chat-conversation-light")

	// Delete, and undo on the page that follows.
	b.press("D", "KeyD", 68, chromedp.ModifierCtrl|chromedp.ModifierShift)
	b.until(`location.pathname === "/"`)
	b.live()
	b.until(fmt.Sprintf("!document.querySelector(%q)", item))
	b.click(".toast button")
	b.until(fmt.Sprintf("document.querySelector(%q)", item))
	b.healthy()
}
