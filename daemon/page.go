package daemon

import (
	"bytes"
	"net/http"

	"github.com/a-h/templ"

	"covey/engine/sample"
	"covey/web"
)

// mountPages adds the static files and the pages that belong to no part of their own.
func (s *Server) mountPages() {
	s.always("GET /static/", web.Assets().ServeHTTP)
	s.always("GET /settings", s.serveSettings)
	s.always("GET /favicon.ico", web.Assets().ServeIcon) // browsers ask for it beside pages that name no icon
}

// serveSettings serves what holds for all of Covey.
func (s *Server) serveSettings(w http.ResponseWriter, r *http.Request) {
	defaults, err := s.chatDefaults(r.Context())
	if err != nil {
		refuse(w, r, http.StatusInternalServerError, AsError(err))
		return
	}
	scheme := "http"
	if s.auth.secure {
		scheme = "https"
	}
	view := web.SettingsView{System: defaults.System, Endpoint: scheme + "://" + r.Host, Version: s.version}
	var params sample.Params
	if eng, err := s.Engine(); err == nil {
		view.Model, params = eng.Model().ID, eng.Defaults()
	}
	view.Settings = settingViews(defaults.Settings, params)
	s.render(w, r, http.StatusOK, web.SettingsPage(s.newPage(r, "settings", "Settings"), view))
}

// newPage fills in what every page shows.
func (s *Server) newPage(r *http.Request, section, title string) web.Page {
	p := web.Page{Title: title, Section: section, Token: identify(r.Context()).PageToken, Loading: -1}
	if eng, err := s.Engine(); err == nil {
		p.Model = eng.Model().Name
	} else if e := AsError(err); e.Code == "loading" {
		s.model.mu.Lock()
		p.Loading = int(s.model.percent())
		s.model.mu.Unlock()
		p.Banner = "The model is loading. You can read; sending works in a moment."
	} else {
		p.Banner = sentence(e.Error()) + " " + sentence(e.Hint)
	}
	p.Storage = storageText(s.store.ReadOnly())
	return p
}

// render writes a page. It is rendered into memory first, so that a failure does not leave half a page.
func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, page templ.Component) {
	var b bytes.Buffer
	if err := page.Render(r.Context(), &b); err != nil {
		refuse(w, r, http.StatusInternalServerError, problem(KindInternal, "internal", "the log has the details", err, "rendering the page"))
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	b.WriteTo(w) // the client is gone if this fails
}
