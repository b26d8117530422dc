package web

// Report is an atlas as a page that stands alone: style inside, no script, no link to a daemon.
type Report struct {
	Atlas    Atlas // ID empty: its figures have no links
	Found    []string
	Limits   []string
	Method   []Term
	Rerun    string // command that measures the same again
	Remove   string // command that removes the same experts again; "" = none was
	Style    string // CSS
	MinLift  float64
	Imported bool
}

// Term is a word of the method with its meaning.
type Term struct{ Word, Meaning string }

// ReportStyle is the style sheet of a report: the pages' own.
func ReportStyle() string {
	return string(Assets().raw("app.css")) + string(Assets().raw("explore.css"))
}
