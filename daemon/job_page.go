package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/engine"
	"covey/store"
	"covey/web"
)

const (
	jobBody       = 64 << 20 // bytes of the form: own texts are in it
	shownFindings = 8
	defaultDraws  = 2000
	maxRemoved    = 1000 // labels of one removal
)

func (j *jobs) servePage(w http.ResponseWriter, r *http.Request) {
	j.show(w, r, http.StatusOK, web.JobForm{Set: "builtin", Draws: defaultDraws, Seed: 1})
}

// show renders the page with a form.
func (j *jobs) show(w http.ResponseWriter, r *http.Request, status int, form web.JobForm) {
	list, err := j.list(r.Context())
	if err != nil {
		refuseError(w, r, stored(err, "the list of batches"))
		return
	}
	builtin, err := probes.Builtin()
	if err != nil {
		refuseError(w, r, problem(KindInternal, "internal", "", err, "reading the built-in texts"))
		return
	}
	_, notReady := j.server.Engine()
	view := web.JobsView{Page: j.server.newPage(r, "jobs", "Probe batches"), Jobs: list, Form: form, Ready: notReady == nil,
		Builtin: web.BuiltinSet{Topics: builtin.Topics, Open: builtin.Count(probes.Open), Sealed: builtin.Count(probes.Sealed)}}
	j.server.render(w, r, status, web.JobsPage(view))
}

// serveNew takes the form: it checks the texts, or starts a batch.
func (j *jobs) serveNew(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		refuse(w, r, http.StatusRequestEntityTooLarge, problem(KindUsage, "invalid", "send fewer texts, or split the set", err, "the form could not be read"))
		return
	}
	eng, err := j.server.Engine()
	if err != nil {
		refuseError(w, r, err)
		return
	}
	form, set, err := j.readForm(r)
	if err != nil {
		form.Problem = sentence(err.Error())
		j.show(w, r, http.StatusBadRequest, form)
		return
	}
	findings, err := lint(eng, set)
	if err != nil {
		form.Problem = sentence(err.Error())
		j.show(w, r, http.StatusBadRequest, form)
		return
	}
	if r.PostForm.Get("do") == "check" {
		form.Findings = findings
		if len(findings) == 0 {
			form.Checked = fmt.Sprintf("%d open and %d sealed texts of %d topics. Nothing to mend.", set.Count(probes.Open), set.Count(probes.Sealed), len(set.Topics))
		}
		j.show(w, r, http.StatusOK, form)
		return
	}
	name := form.Name
	if name == "" {
		name = fmt.Sprintf("%s, %s", set.Name, time.Now().Format("2 January 2006"))
	}
	params := jobParams{Name: name, Set: set.Name, Topics: set.Topics, Draws: form.Draws, Seed: uint64(form.Seed)}
	raw, err := json.Marshal(params)
	if err != nil {
		refuseError(w, r, problem(KindInternal, "internal", "", err, "writing the settings of the batch"))
		return
	}
	info := eng.Model()
	job, err := j.server.store.CreateJob(r.Context(), store.NewJob{Kind: jobKind, Model: info.Name, ModelHash: info.Hash, Numerics: info.NumericsID,
		ProbeHash: set.Hash, Probes: set.Text(), Params: raw, Total: atlas.Forwards(set, params.options())})
	if err != nil {
		refuseError(w, r, stored(err, "the batch"))
		return
	}
	j.work()
	http.Redirect(w, r, "/jobs#job-"+job.ID, http.StatusSeeOther)
}

// texts is the probe set that an atlas was measured with; nil when it is neither the built-in one nor kept with its batch.
func (j *jobs) texts(ctx context.Context, doc *opened) *probes.Set {
	if doc.Kind != atlas.Measured {
		return nil
	}
	if set, err := probes.Builtin(); err == nil && set.Hash == doc.Provenance.ProbeSetHash {
		return set
	}
	if doc.stored.Job == "" {
		return nil
	}
	text, err := j.server.store.JobProbes(ctx, doc.stored.Job)
	if err != nil {
		return nil
	}
	set, err := probes.Read(doc.Provenance.ProbeSet, strings.NewReader(string(text)))
	if err != nil || set.Hash != doc.Provenance.ProbeSetHash {
		return nil
	}
	return set
}

// serveAblate queues a batch that removes an atlas's labelled experts.
func (j *jobs) serveAblate(w http.ResponseWriter, r *http.Request) {
	eng, err := j.server.Engine()
	if err != nil {
		refuseError(w, r, err)
		return
	}
	doc, err := j.atlases.open(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseError(w, r, err)
		return
	}
	refused := func(hint, format string, args ...any) {
		refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", hint, nil, format, args...))
	}
	info := eng.Model()
	labels, err := strconv.Atoi(r.PostFormValue("labels"))
	set := j.texts(r.Context(), doc)
	switch {
	case err != nil || labels < 1 || labels > maxRemoved:
		refused("", "labels must be a number from 1 to %d", maxRemoved)
		return
	case set == nil:
		refused("measure the atlas again from here", "the texts of the atlas %q are not at hand", doc.stored.Name)
		return
	case doc.Provenance.ModelHash != info.Hash || doc.Provenance.NumericsID != info.NumericsID:
		refused("start Covey with that model", "the atlas %q is of another model or other numerics", doc.stored.Name)
		return
	}
	params := jobParams{Name: "Removal: " + doc.stored.Name, Set: set.Name, Topics: set.Topics, Draws: defaultDraws, Seed: doc.Provenance.Seed,
		Atlas: doc.stored.ID, Labels: labels, Groups: r.PostFormValue("groups") == "1"}
	total, err := atlas.AblationReadings(set, doc.Atlas, params.ablation())
	if err != nil {
		refused("", "%v", err)
		return
	}
	raw, err := json.Marshal(params)
	if err != nil {
		refuseError(w, r, problem(KindInternal, "internal", "", err, "writing the settings of the batch"))
		return
	}
	job, err := j.server.store.CreateJob(r.Context(), store.NewJob{Kind: ablationKind, Model: info.Name, ModelHash: info.Hash, Numerics: info.NumericsID,
		ProbeHash: set.Hash, Probes: set.Text(), Params: raw, Total: total})
	if err != nil {
		refuseError(w, r, stored(err, "the batch"))
		return
	}
	j.work()
	http.Redirect(w, r, "/jobs#job-"+job.ID, http.StatusSeeOther)
}

// readForm returns what the form holds, also when it is refused, and the set that it asks for.
func (j *jobs) readForm(r *http.Request) (web.JobForm, *probes.Set, error) {
	f := r.PostForm
	form := web.JobForm{Name: goodName(f.Get("name")), Set: f.Get("set"), Text: f.Get("text"), Topics: map[string]bool{}, Draws: defaultDraws, Seed: 1}
	for _, t := range f["topic"] {
		form.Topics[t] = true
	}
	number := func(field string, least, most int, into *int) error {
		text := f.Get(field)
		if text == "" {
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s must be a number from %d to %d", field, least, most)
		}
		*into = n
		return nil
	}
	if err := errors.Join(number("draws", 100, 20_000, &form.Draws), number("seed", 1, 1<<31-1, &form.Seed)); err != nil {
		return form, nil, err
	}
	if form.Set == "own" {
		set, err := probes.Read("own texts", strings.NewReader(form.Text))
		return form, set, err
	}
	set, err := probes.Builtin()
	if err != nil {
		return form, nil, err
	}
	if len(f["topic"]) < 2 {
		return form, nil, errors.New("choose at least two topics: a lift compares a topic with the others")
	}
	set, err = subset(set, f["topic"])
	return form, set, err
}

// lint looks for what would weaken a measurement, and refuses what cannot be measured at all.
func lint(eng *engine.Engine, set *probes.Set) ([]string, error) {
	if len(set.Topics) < 2 {
		return nil, errors.New("there must be at least two topics: a lift compares a topic with the others")
	}
	found, err := probes.Lint(set, func(text string) (int, error) {
		tokens, err := eng.Tokenizer().Encode(text, false)
		return len(tokens), err
	}, probes.Rules{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range found {
		if len(out) == shownFindings {
			out = append(out, fmt.Sprintf("and %d more", len(found)-shownFindings))
			break
		}
		out = append(out, f.String())
	}
	return out, nil
}

func (j *jobs) serveCancel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := j.server.store.CancelJob(r.Context(), id); err != nil {
		refuseError(w, r, stored(err, "this batch"))
		return
	}
	j.mu.Lock()
	if j.current == id && j.cancel != nil {
		j.cancel()
	}
	j.mu.Unlock()
	j.tell(id, true)
	http.Redirect(w, r, "/jobs#job-"+id, http.StatusSeeOther)
}

func (j *jobs) serveResume(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	j.mu.Lock()
	ending := j.current == id
	j.mu.Unlock()
	if ending {
		refuse(w, r, http.StatusConflict, problem(KindUsage, "busy", "try again in a moment", nil, "the batch is still ending"))
		return
	}
	if err := j.server.store.RequeueJob(r.Context(), id); err != nil {
		refuseError(w, r, stored(err, "this batch"))
		return
	}
	j.work()
	http.Redirect(w, r, "/jobs#job-"+id, http.StatusSeeOther)
}

func (j *jobs) serveDelete(w http.ResponseWriter, r *http.Request) {
	if err := j.server.store.DeleteJob(r.Context(), r.PathValue("id")); err != nil {
		refuseError(w, r, stored(err, "this batch"))
		return
	}
	http.Redirect(w, r, "/jobs", http.StatusSeeOther)
}
