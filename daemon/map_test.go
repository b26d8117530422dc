package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
	"covey/store"
	"covey/web/wire"
)

func TestAWindowHoldsEachChosenExpertOnceWithItsCount(t *testing.T) {
	w := newWindow(route.Shape{Layers: []int{1, 5}, Experts: 4, TopK: 2})
	w.add(&route.Event{Sequence: 7, Tokens: []int32{1, 2}, IDs: []uint16{0, 3, 1, 2, 3, 0, 2, 0}, Weights: make([]float32, 8)})
	w.add(&route.Event{Sequence: 9, Tokens: []int32{3}, IDs: []uint16{3, 1, 0, 1}, Weights: make([]float32, 4)})
	got := w.take()
	want := wire.Pulses{Rows: 3, Sequences: 2, Cells: []wire.Pulse{{Cell: 0, Count: 2}, {Cell: 1, Count: 1}, {Cell: 3, Count: 3}, {Cell: 4, Count: 2}, {Cell: 5, Count: 2}, {Cell: 6, Count: 2}}}
	if got.Rows != want.Rows || got.Sequences != want.Sequences || !slices.Equal(got.Cells, want.Cells) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if again := w.take(); again.Rows != 0 || len(again.Cells) != 0 {
		t.Errorf("a window that was taken still holds %+v", again)
	}
}

func TestTheSurveyShowsNoLiftWithoutAnInterval(t *testing.T) {
	shape := route.Shape{Layers: []int{3, 4}, Experts: 2, TopK: 1}
	now := time.UnixMilli(100_000)
	doc := &opened{Atlas: &atlas.Atlas{Topics: []string{"a", "b"}, Experts: []atlas.Expert{
		{Layer: 3, ID: 0, State: atlas.Insufficient, Share: []float64{1, 0}},
		{Layer: 3, ID: 1, State: atlas.Unmeasured, Share: []float64{0.75, 0.25}},
		{Layer: 4, ID: 1, State: atlas.Specialist, Share: []float64{0.75, 0.25}, Low: []float64{1.2, 0.3}, High: []float64{1.8, 0.7}, Specificity: 0.4},
		{Layer: 9, ID: 0, State: atlas.Generalist, Share: []float64{1, 1}, Low: []float64{1, 1}, High: []float64{1, 1}},
	}}}
	f := surveyFrame(shape, store.Usage{Selections: []int64{1, 2, 0, 4}, LastUsed: []int64{90_000, 0, 0, 100_000}}, doc, now)
	lift := f.Topics[0].Lift
	for cell, want := range []float64{math.NaN(), math.NaN(), math.NaN(), 1.5} {
		if got := float64(lift[cell]); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("lift of cell %d is %v, want %v", cell, got, want)
		}
	}
	if f.Topics[1].Low[3] != 0.3 || f.Topics[1].High[3] != 0.7 || f.Specificity[3] != 0.4 {
		t.Errorf("interval %v to %v, specificity %v", f.Topics[1].Low[3], f.Topics[1].High[3], f.Specificity[3])
	}
	if f.Ages[0] != 10 || !math.IsNaN(float64(f.Ages[1])) || f.Ages[3] != 0 {
		t.Errorf("ages %v", f.Ages)
	}
}

func TestThePartOfASetKeepsCrossedTextsOfItsTopicsOnly(t *testing.T) {
	set, err := probes.New("s", []probes.Probe{
		{ID: "1", Topic: "a", Text: "x"}, {ID: "2", Topic: "b", Text: "x"}, {ID: "3", Topic: "c", Text: "x"}, {ID: "4", Topic: "a+b", Text: "x"}, {ID: "5", Topic: "a+c", Text: "x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	part, err := subset(set, []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, p := range part.Probes {
		ids = append(ids, p.ID)
	}
	if !slices.Equal(ids, []string{"1", "2", "4"}) || !slices.Equal(part.Topics, []string{"a", "b"}) {
		t.Errorf("texts %v of topics %v", ids, part.Topics)
	}
}

// post sends a form with the daemon's token.
func (d *testDaemon) post(path string, form url.Values) (int, string, string) {
	d.t.Helper()
	code, header, body := d.do("POST", path, form.Encode(), "Authorization", "Bearer "+d.token, "Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html")
	return code, header.Get("Location"), body
}

// job waits until a batch is in a state.
func (d *testDaemon) job(id string, state store.JobState) store.Job {
	d.t.Helper()
	for range 3600 {
		job, err := d.store.Job(context.Background(), id)
		if err != nil {
			d.t.Fatal(err)
		}
		if job.State == state {
			return job
		}
		if job.State == store.JobFailed {
			d.t.Fatalf("the batch failed: %s", job.Error)
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.t.Fatalf("the batch never was %s", state)
	return store.Job{}
}

func TestABatchIsCancelledGoesOnAndBecomesAnAtlas(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	ctx := context.Background()
	form := url.Values{"set": {"own"}, "text": {smallSet(t)}, "draws": {"100"}, "name": {"small <set>"}, "do": {"start"}}
	code, where, body := d.post("/jobs", form)
	if code != 303 || !strings.HasPrefix(where, "/jobs#job-") {
		t.Fatalf("start: %d %q %.300s", code, where, body)
	}
	id := strings.TrimPrefix(where, "/jobs#job-")
	d.job(id, store.JobRunning)
	if code, _, body := d.post("/jobs/"+id+"/cancel", nil); code != 303 {
		t.Fatalf("cancel: %d %.300s", code, body)
	}
	d.job(id, store.JobCancelled)
	for range 200 { // the run takes a moment to see that it is over
		if code, _, _ = d.post("/jobs/"+id+"/resume", nil); code != 409 {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	if code != 303 {
		t.Fatalf("resume: %d", code)
	}
	if job := d.job(id, store.JobDone); job.Done != job.Total {
		t.Errorf("%d of %d texts are done", job.Done, job.Total)
	}

	made := (&jobs{server: d.Server}).atlasOf(ctx)[id]
	if made == "" {
		t.Fatal("the batch made no atlas")
	}
	get := func(path string, want ...string) string {
		t.Helper()
		code, _, body := d.get(path, "Accept", "text/html")
		if code != 200 {
			t.Fatalf("%s: %d %.300s", path, code, body)
		}
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s: no %q", path, w)
			}
		}
		return body
	}
	at := "/atlas/" + made
	get("/jobs", "small &lt;set&gt;", `href="`+at+`"`)
	get("/atlas", "small &lt;set&gt;")
	get(at, "small &lt;set&gt;", "Thin data", "0 crossed", "Naming the topic of sealed texts")
	get(at+"?all=1&sort=law&page=99", "All 928 experts, ordered by law")
	get("/experts?layer=7&atlas="+made, "Experts of layer 7", "insufficient data")
	if code, _, _ := d.get(at + "/expert/0/1"); code != 404 {
		t.Errorf("an expert that is not there: %d", code)
	}
	doc, err := (&atlases{server: d.Server}).open(ctx, made)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range doc.Experts {
		if len(e.Low) > 0 {
			get(expertPath(made, e.Layer, e.ID)+"/expert.json", `"atlas":"`+doc.ID, `"topics":[`, fmt.Sprintf(`"expert":{"layer":%d,"id":%d,`, e.Layer, e.ID))
			get(expertPath(made, e.Layer, e.ID), "Lift by topic", "95 % interval", "Texts that chose it most", "tokens chose it", "<mark>")
			break
		}
	}

	// Out and in again: the same document under a new id; colibri's form comes back without intervals.
	file := get(at + "/export/covey.json")
	get(at+"/export/colibri-v1.json", `"experts"`)
	get(at+"/export/experts.csv", "layer,expert,state,topic")
	get(at+"/export/mask.json?coverage=0.5&topic=law", `"format":"covey.mask"`, `"keep":[`)
	if code, _, body := d.get(at + "/export/mask.json?coverage=2"); code != 400 || !strings.Contains(body, "at most 1") {
		t.Errorf("a mask of twice the selections: %d %.200s", code, body)
	}
	get(at+"/export/labels.csv", "layer,expert,topic,lift")
	get(at+"/export/report.html", "What was found", "Method, word by word", "What was measured with what")
	imported := func(name, file string) string {
		t.Helper()
		code, header, body := d.do("POST", "/atlas/import?name="+name, file, "Authorization", "Bearer "+d.token, "Content-Type", "application/json")
		if code != 303 {
			t.Fatalf("import of %s: %d %.300s", name, code, body)
		}
		return header.Get("Location")
	}
	twin := imported("twin.json", file)
	if again := get(twin + "/export/covey.json"); again != file {
		t.Error("an atlas that was exported and imported is another")
	}
	get("/atlas/compare?a="+made+"&b="+strings.TrimPrefix(twin, "/atlas/")+"&topic=law", "law in the second atlas against the first: the intervals of", "<b>0</b>")
	get("/atlas/compare?a="+made+"&b="+made+"&topic=law&topic_b=code", "code against law: the intervals of", "figure-compare")
	if code, _, body := d.do("POST", "/atlas/import?name=.coli_usage", "-1 30 32\n7 3 90\n7 4 10\n", "Authorization", "Bearer "+d.token, "Accept", "text/html"); code != 200 ||
		!strings.Contains(body, "Weak evidence") || !strings.Contains(body, "L7 E3") || !strings.Contains(body, "1.80") || !strings.Contains(body, "small &lt;set&gt;") {
		t.Errorf("a usage history: %d %.2000s", code, body)
	}
	both := "a=" + made + "&b=" + strings.TrimPrefix(twin, "/atlas/") + "&topic=law"
	get("/atlas/compare?"+both, "Over all topics", "Both hold the same measurement", made, strings.TrimPrefix(twin, "/atlas/"), "numerics")
	if rows := strings.Split(get("/atlas/compare.csv?"+both), "\n"); rows[0] != "layer,expert,atlas,topic,lift,low,high,atlas_b,topic_b,lift_b,low_b,high_b,gap" || len(rows) < 100 || !strings.Contains(rows[1], ","+made+",law,") {
		t.Errorf("the comparison as CSV: %d rows, %.300q", len(rows), rows)
	}
	get("/atlas/compare.json?"+both, `"topic":"law"`, `"experts":[{"layer":`)
	if code, _, body := d.get("/atlas/compare.csv?" + both + "&topic_b=alchemy"); code != 400 || !strings.Contains(body, "alchemy") {
		t.Errorf("a comparison with a topic that is not there: %d %.200s", code, body)
	}
	if code, _, body := d.get("/atlas/compare.csv?a=" + made); code != 400 || !strings.Contains(body, "two atlases") {
		t.Errorf("a comparison of one atlas: %d %.200s", code, body)
	}
	if code, _, body := d.do("POST", "/atlas/import?name=mine.json", regexp.MustCompile(`"prompts":\d+`).ReplaceAllString(file, `"prompts":"x"`), "Authorization", "Bearer "+d.token); code != 400 ||
		!strings.Contains(body, `the file \"mine\" is no atlas that can be read: atlas: reading: experts[0].prompts: string, want a whole number`) {
		t.Errorf("import of a text for a number: %d %.400s", code, body)
	}
	if code, _, body := d.do("POST", "/atlas/import", `{"format":"covey.atlas"}`, "Authorization", "Bearer "+d.token); code != 400 || !strings.Contains(body, "no atlas") {
		t.Errorf("import of something else: %d %.200s", code, body)
	}
	if code, where, _ := d.post(twin+"/rename", url.Values{"name": {"  a   twin "}}); code != 303 || where != twin {
		t.Errorf("rename: %d %q", code, where)
	}
	get(twin, "a twin")
	if code, _, _ := d.post(twin+"/delete", nil); code != 303 {
		t.Errorf("delete: %d", code)
	}
	if code, _, _ := d.get(twin); code != 404 {
		t.Errorf("a deleted atlas answers %d", code)
	}
	if code, _, _ := d.post("/jobs/"+id+"/delete", nil); code != 303 {
		t.Errorf("deleting the batch: %d", code)
	}
	get(at, "small &lt;set&gt;") // the atlas stays
}

func TestOnlyConversationsWhoseAnswersEndedAreComparedAtFirst(t *testing.T) {
	ctx := t.Context()
	db, err := store.Open(ctx, store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	model := engine.ModelInfo{Hash: "m"}
	made := map[string]string{} // name by conversation
	add := func(name string, finish ...string) {
		c, err := db.CreateConversation(ctx, name, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		made[c.ID] = name
		for _, how := range finish {
			_, answer, err := db.BeginTurn(ctx, store.NewTurn{Conversation: c.ID, Text: "q", ModelHash: model.Hash})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.FinishTurn(ctx, store.TurnResult{Answer: answer.ID, State: store.StateComplete, Routing: []byte("r"), Turn: store.Turn{Finish: how}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("ended", engine.FinishStop)
	add("at its limit", engine.FinishStop, engine.FinishLength)
	add("once stopped", engine.FinishCancel, engine.FinishStop)
	add("interrupted", "interrupted")
	add("without an answer")
	list, chosen := (&maps{server: &Server{store: db}}).talks(ctx, model)
	names := ""
	for _, c := range list {
		names += made[c.ID] + "; "
	}
	if want := "interrupted; once stopped; at its limit; ended; "; names != want {
		t.Errorf("offered are %s want %s", names, want)
	}
	if made[chosen[0]] != "at its limit" || made[chosen[1]] != "ended" {
		t.Errorf("compared at first are %q and %q", made[chosen[0]], made[chosen[1]])
	}
}

// tellingSet is a probe set of three topics that any language model tells apart: the beginnings of twelve open and two
// sealed texts each of the built-in set.
func tellingSet(t *testing.T) string {
	t.Helper()
	set, err := probes.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	var list []probes.Probe
	for _, p := range set.Probes {
		if p.Topic != "chinese" && p.Topic != "code" && p.Topic != "poetry" {
			continue
		}
		most := map[string]int{probes.Open: 12, probes.Sealed: 2}[p.Split]
		if n[p.Topic+p.Split] == most {
			continue
		}
		n[p.Topic+p.Split]++
		if len(p.Text) > 120 {
			p.Text = strings.ToValidUTF8(p.Text[:120], "")
		}
		list = append(list, p)
	}
	small, err := probes.New("telling", list)
	if err != nil {
		t.Fatal(err)
	}
	return string(small.Text())
}

func TestExpertsOfLabelsAreRemovedFromThePageOfTheirAtlas(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	_, where, body := d.post("/jobs", url.Values{"set": {"own"}, "text": {tellingSet(t)}, "draws": {"200"}, "name": {"telling"}, "do": {"start"}})
	id, ok := strings.CutPrefix(where, "/jobs#job-")
	if !ok {
		t.Fatalf("start: %q %.300s", where, body)
	}
	d.job(id, store.JobDone)
	made := (&jobs{server: d.Server}).atlasOf(context.Background())[id]
	at := "/atlas/" + made
	if _, _, body = d.get(at, "Accept", "text/html"); !strings.Contains(body, "Nothing has been removed yet") || !strings.Contains(body, at+"/ablate") {
		t.Fatal("the page does not offer to remove experts")
	}
	if code, _, body := d.post(at+"/ablate", url.Values{"labels": {"0"}}); code != 400 || !strings.Contains(body, "1 to 1000") {
		t.Errorf("no labels: %d %.200s", code, body)
	}
	code, where, body := d.post(at+"/ablate", url.Values{"labels": {"1"}})
	id, ok = strings.CutPrefix(where, "/jobs#job-")
	if !ok {
		t.Fatalf("removal: %d %q %.300s", code, where, body)
	}
	job := d.job(id, store.JobDone)
	if job.Done != job.Total || job.Total == 0 {
		t.Errorf("%d of %d readings are done", job.Done, job.Total)
	}
	_, _, body = d.get(at, "Accept", "text/html")
	for _, want := range []string{"Beyond controls", "Removal", "figure-matrix"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page shows no %q", want)
		}
	}
	if _, _, body := d.get("/jobs", "Accept", "text/html"); !strings.Contains(body, "experts removed") || !strings.Contains(body, `href="`+at+`"`) {
		t.Error("the batch does not lead to its atlas")
	}
}

func expertPath(id string, layer, expert int) string {
	return "/atlas/" + id + "/expert/" + strconv.Itoa(layer) + "/" + strconv.Itoa(expert)
}

func TestAFormThatCannotBeMeasuredIsGivenBackWithTheReason(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	for want, form := range map[string]url.Values{
		"line 2":              {"set": {"own"}, "text": {"{\"id\":\"a\",\"topic\":\"x\",\"text\":\"hello\"}\n{\"id\":\"a\"}"}},
		"at least two topics": {"set": {"builtin"}, "topic": {"law"}},
		"draws must be a number from 100 to 20000": {"set": {"builtin"}, "topic": {"law", "code"}, "draws": {"7"}},
	} {
		code, _, body := d.post("/jobs", form)
		if code != 400 || !strings.Contains(strings.ToLower(body), want) {
			t.Errorf("%v: %d without %q", form, code, want)
		}
	}
}

func TestABatchThatWasCutOffIsQueuedAgainAndRefusesAnotherModel(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	ctx := context.Background()
	job, err := d.store.CreateJob(ctx, store.NewJob{Kind: jobKind, Model: "other", ModelHash: "ff", ProbeHash: "p", Probes: []byte("x"), Params: json.RawMessage(`{"name":"n"}`), Total: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.StartJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	j := &jobs{server: d.Server, atlases: &atlases{server: d.Server}, followers: map[*Conn]bool{}}
	j.resume()
	for range 400 {
		if job, err = d.store.Job(ctx, job.ID); err != nil {
			t.Fatal(err)
		}
		if job.State == store.JobFailed {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if job.State != store.JobFailed || !strings.Contains(job.Error, "another model (other)") {
		t.Errorf("%s: %q", job.State, job.Error)
	}
}

func TestTheSystemPageIsThereWithAndWithoutAModel(t *testing.T) {
	d := modelDaemon(t)
	d.t = t
	_, _, body := d.get("/system", "Accept", "text/html")
	eng, err := d.Engine()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{eng.Model().Hash, eng.Model().NumericsID, "all in RAM", "Examination"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q", want)
		}
	}
	bare := startDaemon(t, nil)
	bare.loaded()
	if code, _, body := bare.get("/system", "Accept", "text/html"); code != 200 || !strings.Contains(body, "The model could not be loaded") {
		t.Errorf("without a model: %d %.200s", code, body)
	}
	if code, _, _ := bare.get("/atlas", "Accept", "text/html"); code != 200 {
		t.Errorf("the atlases cannot be read without a model: %d", code)
	}
}
