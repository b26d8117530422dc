package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The methods that templates may call, by type. Those that change a list or mapping are not among them, as in the
// reference's immutable sandbox.
var (
	textMethods = names("split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace",
		"upper", "lower", "title", "capitalize", "join", "find", "rfind", "index", "count", "isdigit", "isalpha", "isalnum",
		"isupper", "islower", "isspace", "isnumeric", "isdecimal", "removeprefix", "removesuffix", "zfill", "ljust", "rjust")
	dictMethods = names("items", "keys", "values", "get", "copy")
	listMethods = names("index", "count")
)

func names(list ...string) map[string]struct{} {
	out := make(map[string]struct{}, len(list))
	for _, n := range list {
		out[n] = struct{}{}
	}
	return out
}

func hasMethod(v Value, name string) bool {
	ok := false
	switch v.(type) {
	case Text:
		_, ok = textMethods[name]
	case *Dict:
		_, ok = dictMethods[name]
	case *List:
		_, ok = listMethods[name]
	}
	return ok
}

func (m *machine) callMethod(receiver Value, name string, a arguments) (Value, error) {
	if err := m.charge(weight(receiver)); err != nil {
		return nil, err
	}
	switch v := receiver.(type) {
	case Text:
		return m.textMethod(v, name, a)
	case *Dict:
		return v.method(name, a)
	case *List:
		return m.listMethod(v, name, a)
	case *loop:
		return m.loopMethod(v, name, a)
	}
	return nil, fmt.Errorf("%s has no such method", kind(receiver))
}

func (d *Dict) method(name string, a arguments) (Value, error) {
	out := NewList()
	switch name {
	case "items":
		for _, e := range d.entries {
			out.Append(&List{[]Value{e.key, e.value}, true})
		}
	case "keys":
		for _, e := range d.entries {
			out.Append(e.key)
		}
	case "values":
		for _, e := range d.entries {
			out.Append(e.value)
		}
	case "copy":
		c := NewDict()
		for _, e := range d.entries {
			c.put(e.key, e.value)
		}
		return c, nil
	case "get":
		key, ok := a.take(0, "key")
		if !ok {
			return nil, fmt.Errorf("key missing")
		}
		if v, ok := d.get(key); ok {
			return v, nil
		}
		v, _ := a.take(1, "default")
		return v, nil
	}
	return out, nil
}

func (m *machine) listMethod(l *List, name string, a arguments) (Value, error) {
	want, ok := a.take(0, "value")
	if !ok {
		return nil, fmt.Errorf("value missing")
	}
	n := int64(0)
	for i, v := range l.items {
		same, err := m.equal(v, want, 0)
		if err != nil {
			return nil, err
		}
		if same {
			if name == "index" {
				return int64(i), nil
			}
			n++
		}
	}
	if name == "index" {
		return nil, fmt.Errorf("value is not in the list")
	}
	return n, nil
}

func (m *machine) loopMethod(l *loop, name string, a arguments) (Value, error) {
	if name == "cycle" {
		if len(a.positional) == 0 {
			return nil, fmt.Errorf("no values to cycle through")
		}
		return a.positional[l.index%len(a.positional)], nil
	}
	before := l.changed
	l.changed = append([]Value{}, a.positional...)
	same, err := m.equal(NewList(before...), NewList(l.changed...), 0)
	return before == nil || !same, err
}

// textMethod is a method of str.
func (m *machine) textMethod(t Text, name string, a arguments) (Value, error) {
	switch name {
	case "split", "rsplit":
		return m.split(t, name, a)
	case "splitlines":
		return m.texts(t.lines())
	case "strip", "lstrip", "rstrip":
		cut, err := cutset(a, 0)
		if err != nil {
			return nil, err
		}
		return t.trimFunc(cut, name != "rstrip", name != "lstrip"), nil
	case "startswith", "endswith":
		return t.affix(name, a)
	case "removeprefix", "removesuffix":
		affix, err := a.text(0, "affix", "")
		if err != nil {
			return nil, err
		}
		if name == "removeprefix" && strings.HasPrefix(t.s, affix.s) {
			return t.slice(len(affix.s), len(t.s)), nil
		}
		if name == "removesuffix" && strings.HasSuffix(t.s, affix.s) {
			return t.slice(0, len(t.s)-len(affix.s)), nil
		}
		return t, nil
	case "replace":
		return m.replace(t, a)
	case "upper":
		return upper(t), nil
	case "lower":
		return lower(t), nil
	case "title":
		return title(t), nil
	case "capitalize":
		return capitalize(t), nil
	case "join":
		if len(a.positional) != 1 {
			return nil, fmt.Errorf("one list expected")
		}
		return m.join(a.positional[0], t, true)
	case "find", "rfind", "index":
		sub, err := a.text(0, "sub", "")
		if err != nil {
			return nil, err
		}
		i := strings.Index(t.s, sub.s)
		if name == "rfind" {
			i = strings.LastIndex(t.s, sub.s)
		}
		if i < 0 {
			if name == "index" {
				return nil, fmt.Errorf("substring not found")
			}
			return int64(-1), nil
		}
		return int64(utf8.RuneCountInString(t.s[:i])), nil
	case "count":
		sub, err := a.text(0, "sub", "")
		if err != nil {
			return nil, err
		}
		return int64(strings.Count(t.s, sub.s)), nil
	case "zfill", "ljust", "rjust":
		return m.pad(t, name, a)
	}
	return t.is(name), nil
}

// split is str.split and str.rsplit.
func (m *machine) split(t Text, name string, a arguments) (Value, error) {
	n, err := a.integer(1, "maxsplit", -1)
	if err != nil {
		return nil, err
	}
	var parts []Text
	sep, ok := a.take(0, "sep")
	text, isText := sep.(Text)
	switch {
	case ok && sep != nil && (!isText || text.s == ""):
		return nil, fmt.Errorf("separator is not a string with characters")
	case isText && name == "split":
		parts = t.split(text.s, int(n))
	case isText:
		parts = t.splitRight(text.s, int(n))
	case name == "rsplit" && n >= 0:
		return nil, fmt.Errorf("rsplit at white space with a limit is not supported")
	default:
		parts = t.fields(int(n))
	}
	return m.texts(parts)
}

// texts is a list of texts, each charged for the memory it takes.
func (m *machine) texts(parts []Text) (Value, error) {
	out := NewList()
	for _, part := range parts {
		out.Append(part)
	}
	return out, m.charge(64 * len(parts))
}

// lines is str.splitlines().
func (t Text) lines() []Text {
	var parts []Text
	for t.s != "" {
		i := strings.IndexAny(t.s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			parts = append(parts, t)
			break
		}
		parts = append(parts, t.slice(0, i))
		_, n := utf8.DecodeRuneInString(t.s[i:])
		if strings.HasPrefix(t.s[i:], "\r\n") {
			n = 2
		}
		t = t.slice(i+n, len(t.s))
	}
	return parts
}

// cutset is the characters that strip removes: those of the argument at i, else white space.
func cutset(a arguments, i int) (func(rune) bool, error) {
	v, ok := a.take(i, "chars")
	if !ok || v == nil {
		return isSpace, nil
	}
	t, ok := v.(Text)
	if !ok {
		return nil, fmt.Errorf("characters to strip are %s", kind(v))
	}
	return func(r rune) bool { return strings.ContainsRune(t.s, r) }, nil
}

// affix is str.startswith and str.endswith, with one text or a tuple of them.
func (t Text) affix(name string, a arguments) (Value, error) {
	v, _ := a.take(0, "affix")
	candidates := []Value{v}
	if l, ok := v.(*List); ok && l.tuple {
		candidates = l.items
	}
	for _, c := range candidates {
		c, ok := c.(Text)
		if !ok {
			return nil, fmt.Errorf("a string or a tuple of strings expected, not %s", kind(v))
		}
		if name == "startswith" && strings.HasPrefix(t.s, c.s) || name == "endswith" && strings.HasSuffix(t.s, c.s) {
			return true, nil
		}
	}
	return false, nil
}

// replace is str.replace and the filter of that name.
func (m *machine) replace(t Text, a arguments) (Value, error) {
	old, err := a.text(0, "old", "")
	if err != nil {
		return nil, err
	}
	new, err := a.text(1, "new", "")
	if err != nil {
		return nil, err
	}
	n, err := a.integer(2, "count", -1)
	if err != nil {
		return nil, err
	}
	found := strings.Count(t.s, old.s)
	if n >= 0 {
		found = min(found, int(n))
	}
	if len(new.s) > 0 && found > m.limits.Output/len(new.s) {
		return nil, fmt.Errorf("%w: %d replacements by %d bytes", ErrLimit, found, len(new.s))
	}
	if err := m.charge(len(t.s) + found*len(new.s)); err != nil {
		return nil, err
	}
	return t.replace(old.s, new, int(n)), nil
}

// pad is str.zfill, str.ljust and str.rjust.
func (m *machine) pad(t Text, name string, a arguments) (Value, error) {
	width, err := a.integer(0, "width", 0)
	if err != nil {
		return nil, err
	}
	missing := "0"
	if name != "zfill" {
		missing = " "
	}
	fill, err := a.text(1, "fillchar", missing)
	if err != nil {
		return nil, err
	}
	n := width - int64(utf8.RuneCountInString(t.s))
	if n <= 0 {
		return t, nil
	}
	v, err := m.repeat(fill, n)
	if err != nil {
		return nil, err
	}
	padding := v.(Text)
	switch {
	case name == "ljust":
		return t.plus(padding), nil
	case name == "zfill" && t.s != "" && (t.s[0] == '-' || t.s[0] == '+'):
		return t.slice(0, 1).plus(padding).plus(t.slice(1, len(t.s))), nil
	}
	return padding.plus(t), nil
}

// is is the family of str.isdigit().
func (t Text) is(name string) bool {
	cased, upper, lower := false, true, true
	for _, r := range t.s {
		ok := true
		switch name {
		case "isdigit", "isdecimal", "isnumeric":
			ok = unicode.IsDigit(r) || name == "isnumeric" && unicode.IsNumber(r)
		case "isalpha":
			ok = unicode.IsLetter(r)
		case "isalnum":
			ok = unicode.IsLetter(r) || unicode.IsNumber(r)
		case "isspace":
			ok = isSpace(r)
		}
		if !ok {
			return false
		}
		if unicode.IsUpper(r) || unicode.IsTitle(r) {
			cased, lower = true, false
		} else if unicode.IsLower(r) {
			cased, upper = true, false
		}
	}
	switch name {
	case "isupper":
		return cased && upper
	case "islower":
		return cased && lower
	}
	return t.s != ""
}

// upperRune and lowerRune are the full case mappings; one character may become two.
func upperRune(r rune) string {
	if r == 'ß' {
		return "SS"
	}
	return string(unicode.ToUpper(r))
}

func lowerRune(r rune) string {
	if r == 'İ' {
		return "i\u0307"
	}
	return string(unicode.ToLower(r))
}

func upper(t Text) Text { return t.mapRunes(func(_ int, r rune) string { return upperRune(r) }) }

func lower(t Text) Text { return t.mapRunes(func(_ int, r rune) string { return lowerRune(r) }) }

// title makes the first letter of each run of letters a capital and the others small.
func title(t Text) Text {
	inside := false
	return t.mapRunes(func(_ int, r rune) string {
		was := inside
		inside = unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		if was {
			return lowerRune(r)
		}
		return string(unicode.ToTitle(r))
	})
}

// capitalize makes the first character a capital and the others small.
func capitalize(t Text) Text {
	return t.mapRunes(func(i int, r rune) string {
		if i == 0 {
			return string(unicode.ToTitle(r))
		}
		return lowerRune(r)
	})
}
