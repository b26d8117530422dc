package store

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAtlasIsKeptWithItsDocument(t *testing.T) {
	s := openNew(t)
	document := bytes.Repeat([]byte(`{"expert": 1}`), 10_000)
	saved := must(s.SaveAtlas(ctx, Atlas{Name: "First", Job: "j", Model: "tiny", ModelHash: "m1", Numerics: "n1", ProbeHash: "p1",
		Summary: json.RawMessage(`{"experts": 256}`)}, document))
	want := Atlas{ID: saved.ID, Name: "First", Job: "j", Model: "tiny", ModelHash: "m1", Numerics: "n1", ProbeHash: "p1",
		Summary: json.RawMessage(`{"experts":256}`), Size: 130_000, Created: saved.Created}
	if diff := cmp.Diff(want, must(s.Atlas(ctx, saved.ID))); diff != "" || saved.ID == "" || saved.Created.IsZero() {
		t.Error(diff)
	}
	if !bytes.Equal(must(s.AtlasDocument(ctx, saved.ID)), document) {
		t.Error("the document differs")
	}
	var packed int
	ok(s.reader.QueryRow("SELECT length(gzip) FROM atlas_document").Scan(&packed))
	if packed > len(document)/10 {
		t.Errorf("%d bytes of very even text are kept in %d", len(document), packed)
	}
	ok(s.RenameAtlas(ctx, saved.ID, "Second"))
	other := must(s.SaveAtlas(ctx, Atlas{Name: "Other", ModelHash: "m2"}, nil))
	if list := must(s.Atlases(ctx, "")); len(list) != 2 || list[0].ID != other.ID || list[1].Name != "Second" {
		t.Errorf("list is %+v", list)
	}
	if list := must(s.Atlases(ctx, "m1")); len(list) != 1 || list[0].ID != saved.ID {
		t.Errorf("list of m1 is %+v", list)
	}
	if document := must(s.AtlasDocument(ctx, other.ID)); len(document) != 0 {
		t.Errorf("empty document is %q", document)
	}
	ok(s.ReplaceAtlasDocument(ctx, saved.ID, []byte("completed")))
	if got := must(s.AtlasDocument(ctx, saved.ID)); string(got) != "completed" || must(s.Atlas(ctx, saved.ID)).Size != 9 {
		t.Errorf("the replaced document is %q", got)
	}
	wantErr(t, s.ReplaceAtlasDocument(ctx, "none", nil), ErrNotFound)
	ok(s.DeleteAtlas(ctx, saved.ID))
	wantErr(t, s.DeleteAtlas(ctx, saved.ID), ErrNotFound)
	_, err := s.AtlasDocument(ctx, saved.ID)
	wantErr(t, err, ErrNotFound)
}

func TestDocumentThatIsNotWhatWasSavedIsRefused(t *testing.T) {
	s := openNew(t)
	saved := must(s.SaveAtlas(ctx, Atlas{Name: "A"}, []byte("document")))
	for name, change := range map[string]string{
		"longer":  "UPDATE atlas SET size = 3",
		"shorter": "UPDATE atlas SET size = 300",
		"no gzip": "UPDATE atlas_document SET gzip = x'00'",
	} {
		must(s.writer.Exec(change))
		if _, err := s.AtlasDocument(ctx, saved.ID); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			wantErr(t, err, ErrCorrupt, saved.ID)
		}
	}
}

func TestSettingsAreKeptAsJSON(t *testing.T) {
	s := openNew(t)
	type appearance struct{ Theme string }
	got := appearance{"default"}
	if found := must(s.Setting(ctx, "ui", &got)); found || got.Theme != "default" {
		t.Errorf("an absent setting gives %v %+v", found, got)
	}
	ok(s.SetSetting(ctx, "ui", appearance{"dark"}))
	ok(s.SetSetting(ctx, "ui", appearance{"light"}))
	if found := must(s.Setting(ctx, "ui", &got)); !found || got.Theme != "light" {
		t.Errorf("%v %+v", found, got)
	}
	if _, err := s.Setting(ctx, "ui", new(int)); err == nil {
		t.Error("an object was read as a number")
	}
	wantErr(t, s.SetSetting(ctx, "ui", func() {}), ErrInvalid)
}
