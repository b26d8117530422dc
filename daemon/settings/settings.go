// Package settings layers Covey's configuration: command line over environment over file over default. It plugs into
// the flag parser (kong) as a resolver, so that every setting is declared once, as a struct field, and it remembers
// where each value came from.
//
// A setting named max-sockets is the flag --max-sockets, the variable COVEY_MAX_SOCKETS and the file's key max-sockets.
// Files are TOML, or JSON if their name ends in .json; keys are flat. A key or COVEY_ variable that is no setting is an
// error that names it, its place and the nearest setting: a typing mistake must not silently mean the default.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const prefix = "COVEY_"

// Variables with our prefix that are no settings: the file's name, the switch of the tests' long forms, and the device call
// that is made to fail.
var reserved = []string{"COVEY_CONFIG", "COVEY_LONG", "COVEY_FAIL_AFTER"}

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// File is the type of the --config flag. Parsing it reads the file before other flags are resolved.
type File string

// BeforeResolve is called by kong with the bound Layers.
func (f File) BeforeResolve(l *Layers, ctx *kong.Context, trace *kong.Path) error {
	return l.Read(string(ctx.FlagValue(trace.Flag).(File)))
}

// Layers holds the values of environment and file. Use New, then kong.Resolvers(l) and kong.Bind(l). Not for concurrent
// use.
type Layers struct {
	names   []string // of all settings, sorted
	env     map[string]string
	envFile string // from COVEY_CONFIG, read unless --config says otherwise
	read    bool
	path    string
	file    map[string]any
	lines   map[string]int
	from    map[string]string // setting -> place its resolved value came from
}

// New makes layers for the settings that are the fields of config (a pointer to a struct with kong's tags; vars fill
// its defaults) and checks the environment (in os.Environ's form).
func New(config any, vars kong.Vars, environ []string) (*Layers, error) {
	parser, err := kong.New(config, vars, kong.NoDefaultHelp())
	if err != nil {
		return nil, fmt.Errorf("settings: reading the declarations: %w", err)
	}
	l := &Layers{env: map[string]string{}, from: map[string]string{}}
	for _, flag := range parser.Model.Flags {
		l.names = append(l.names, flag.Name)
	}
	sort.Strings(l.names)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		switch {
		case name == "COVEY_CONFIG":
			l.envFile = value
		case slices.Contains(reserved, name):
		case slices.ContainsFunc(l.names, func(setting string) bool { return Variable(setting) == name }):
			l.env[name] = value
		default:
			variables := slices.Clone(reserved)
			for _, setting := range l.names {
				variables = append(variables, Variable(setting))
			}
			return nil, fmt.Errorf("settings: environment variable %s: no such setting; the nearest is %s", name, nearest(name, variables))
		}
	}
	return l, nil
}

// Variable is the environment variable of a setting.
func Variable(setting string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// Read reads the configuration file, replacing one read before.
func (l *Layers) Read(path string) error {
	l.read = true
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("settings: reading the configuration file: %w", err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1)) // a device or a pipe does not say how long it is
	if err != nil {
		return fmt.Errorf("settings: reading the configuration file: %w", err)
	}
	if len(raw) > maxFile {
		return fmt.Errorf("settings: %s: more than the %d bytes that a configuration file may have", path, maxFile)
	}
	return l.parse(path, raw)
}

func (l *Layers) parse(path string, raw []byte) error {
	values := map[string]any{}
	if strings.EqualFold(filepath.Ext(path), ".json") {
		if err := json.Unmarshal(raw, &values, json.WithUnmarshalers(json.UnmarshalFromFunc(number))); err != nil {
			var syntax *jsontext.SyntacticError
			if !errors.As(err, &syntax) {
				return fmt.Errorf("settings: %s: %w", path, err)
			}
			return fmt.Errorf("settings: %s:%d: %w", path, 1+bytes.Count(raw[:min(len(raw), int(syntax.ByteOffset))], []byte("\n")), err)
		}
	} else if err := toml.Unmarshal(raw, &values); err != nil {
		return fmt.Errorf("settings: %s: %w", path, err)
	}
	l.path, l.file, l.lines = path, values, map[string]int{}
	keys := make([]string, 0, len(values))
	for key := range values {
		l.lines[key] = line(raw, key)
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool { return l.lines[keys[i]] < l.lines[keys[j]] })
	for _, key := range keys {
		if _, table := values[key].(map[string]any); table {
			return fmt.Errorf("settings: %s: %q is a table; keys are flat", l.place(key), key)
		}
		if !slices.Contains(l.names, key) {
			return fmt.Errorf("settings: %s: key %q: no such setting; the nearest is %q", l.place(key), key, nearest(key, l.names))
		}
	}
	return nil
}

// number keeps a number as it is written: kong parses text, and a float64 would not be taken for an int.
func number(from *jsontext.Decoder, to *any) error {
	if from.PeekKind() != '0' {
		return json.SkipFunc
	}
	value, err := from.ReadValue()
	*to = string(value)
	return err
}

// line finds where a key is set, 0 when it cannot tell.
func line(raw []byte, key string) int {
	at := regexp.MustCompile(`(?m)^[\s{,]*\[?["']?` + regexp.QuoteMeta(key) + `["']?\s*[=:\]]|[{,]\s*"` + regexp.QuoteMeta(key) + `"\s*:`).FindIndex(raw)
	if at == nil {
		return 0
	}
	return 1 + bytes.Count(raw[:at[1]], []byte("\n"))
}

func (l *Layers) place(key string) string {
	if n := l.lines[key]; n > 0 {
		return fmt.Sprintf("%s:%d", l.path, n)
	}
	return l.path
}

// Validate is part of kong.Resolver; New and Read have checked everything already.
func (l *Layers) Validate(*kong.Application) error { return nil }

// Resolve is part of kong.Resolver: the environment's value, else the file's, else none. A flag tagged local has a
// setting's name but is the verb's own.
func (l *Layers) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !l.read && l.envFile != "" {
		if err := l.Read(l.envFile); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(l.names, flag.Name) || flag.Tag.Has("local") {
		return nil, nil
	}
	if value, ok := l.env[Variable(flag.Name)]; ok {
		l.from[flag.Name] = Variable(flag.Name)
		return value, nil
	}
	if value, ok := l.file[flag.Name]; ok {
		l.from[flag.Name] = l.place(flag.Name)
		return value, nil
	}
	return nil, nil
}

// Place is where the resolved value of a setting came from; "" for the command line and defaults. After a failed parse
// it tells which variable or file held the bad value.
func (l *Layers) Place(setting string) string { return l.from[setting] }

// Value is one effective setting.
type Value struct {
	Name  string
	Group string
	Value any
	From  string // flag, COVEY_NAME, FILE:LINE or default
}

// Effective lists the settings among the flags of a parsed command line, in order of declaration.
func (l *Layers) Effective(ctx *kong.Context) []Value {
	typed := map[*kong.Flag]bool{}
	for _, path := range ctx.Path {
		if path.Flag != nil && !path.Resolved {
			typed[path.Flag] = true
		}
	}
	var values []Value
	for _, flag := range ctx.Flags() {
		if !slices.Contains(l.names, flag.Name) {
			continue
		}
		v := Value{Name: flag.Name, Value: ctx.FlagValue(flag), From: "default"}
		if flag.Group != nil {
			v.Group = flag.Group.Key
		}
		if typed[flag] {
			v.From = "flag"
		} else if place := l.from[flag.Name]; place != "" {
			v.From = place
		}
		values = append(values, v)
	}
	return values
}

// nearest is the name with the least edit distance to word; the first of equals.
func nearest(word string, names []string) string {
	best, least := "", len(word)+64
	for _, name := range names {
		if d := distance(word, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is Levenshtein's, over bytes, with one row of memory.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next := min(row[j]+1, row[j-1]+1, diagonal+cost)
			diagonal, row[j] = row[j], next
		}
	}
	return row[len(b)]
}
