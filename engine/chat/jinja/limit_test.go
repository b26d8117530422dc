package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEveryWayToGrowOrRunOnIsStopped(t *testing.T) {
	double := func(name, body string) string {
		return "{% set ns = namespace(v=" + name + ") %}{% for i in range(100) %}" + body + "{% endfor %}{{ ns.v | length }}"
	}
	for name, source := range map[string]string{
		"nested loops":          "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"a text doubled":        double("'a'", "{% set ns.v = ns.v + ns.v %}"),
		"a text joined":         double("'a'", "{% set ns.v = ns.v ~ ns.v %}"),
		"a list doubled":        double("[1]", "{% set ns.v = ns.v + ns.v %}"),
		"a value nested twice":  double("[1]", "{% set ns.v = [ns.v, ns.v] %}") + "{{ ns.v == ns.v }}",
		"equal shared values":   "{% set a = namespace(v=[1]) %}{% set b = namespace(v=[1]) %}{% for i in range(60) %}{% set a.v = [a.v, a.v] %}{% set b.v = [b.v, b.v] %}{% endfor %}{{ a.v == b.v }}",
		"ordered shared values": "{% set a = namespace(v=[1]) %}{% set b = namespace(v=[1]) %}{% for i in range(60) %}{% set a.v = [a.v, a.v] %}{% set b.v = [b.v, b.v] %}{% endfor %}{{ a.v < b.v }}",
		"printed shared values": double("[1]", "{% if i < 60 %}{% set ns.v = [ns.v, ns.v] %}{% endif %}") + "{{ ns.v }}",
		"shared values as JSON": double("[1]", "{% if i < 60 %}{% set ns.v = [ns.v, ns.v] %}{% endif %}") + "{{ ns.v | tojson }}",
		"a text repeated":       "{{ ('a' * 1000000000) | length }}",
		"repeated again":        double("'a'", "{% set ns.v = ns.v * 100 %}"),
		"replacements":          "{{ ('a' * 100000).replace('a', 'b' * 100000) | length }}",
		"replacing nothing":     double("'a'", "{% set ns.v = ns.v.replace('', 'xx') %}"),
		"a long separator":      "{% for i in range(1000) %}{% set x = ('a' * 1000) | join('b' * 100000) %}{% endfor %}",
		"indentation":           "{{ ('\n' * 100000) | indent('x' * 100000, true, true) | length }}",
		"padding":               "{{ '1'.zfill(10000000000) }}",
		"a long range":          "{{ range(100001) | length }}",
		"endless recursion":     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"output":                "{% for i in range(100) %}{{ 'a' * 1000000 }}{% endfor %}",
		"captured output":       "{% set x %}{% for i in range(100) %}{{ 'a' * 1000000 }}{% endfor %}{% endset %}",
		"splitting":             "{% set ns = namespace(v=[]) %}{% for i in range(100) %}{% set ns.v = ns.v + [(',' * 1000000).split(',')] %}{% endfor %}",
		"characters":            "{% set ns = namespace(v=[]) %}{% for i in range(100) %}{% set ns.v = ns.v + [('a' * 1000000) | list] %}{% endfor %}",
	} {
		template, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		_, err = template.Render(context.Background(), nil, now, Limits{Steps: 200_000, Output: 1 << 20})
		if !errors.Is(err, ErrLimit) {
			// Nested values end at the bound on nesting, which is an error of its own.
			if err == nil || !strings.Contains(err.Error(), "nested deeper") {
				t.Errorf("%s: error %v, want one about limits", name, err)
			}
		}
	}
}

func TestTemplatesThatNestOrChainWithoutBoundAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"brackets":   "{{ " + strings.Repeat("(", 20000) + "1" + strings.Repeat(")", 20000) + " }}",
		"lists":      "{{ " + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + " }}",
		"not":        "{{ " + strings.Repeat("not ", 20000) + "1 }}",
		"signs":      "{{ " + strings.Repeat("-", 20000) + "1 }}",
		"blocks":     strings.Repeat("{% if 1 %}", 20000) + strings.Repeat("{% endif %}", 20000),
		"sums":       "{{ 1" + strings.Repeat("+1", 20000) + " }}",
		"attributes": "{{ a" + strings.Repeat(".a", 20000) + " }}",
		"filters":    "{{ a" + strings.Repeat("|e", 20000) + " }}",
		"targets":    "{% set " + strings.Repeat("(", 20000) + "a" + strings.Repeat(")", 20000) + " = 1 %}",
		"conditions": "{{ 1" + strings.Repeat(" if 1", 20000) + " }}",
		"size":       strings.Repeat("x", maxSource+1),
	} {
		if _, err := Parse(source); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRenderingStopsWithItsContextAndItsTime(t *testing.T) {
	const source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
	template, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := template.Render(ctx, nil, now, Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	_, err = template.Render(context.Background(), nil, now, Limits{Steps: 1 << 40, Time: time.Nanosecond})
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("error %v, want one about time", err)
	}
}

// spell writes untrusted runs in brackets.
func spell(text Text) string {
	var b strings.Builder
	text.Runs(func(part string, trusted bool) {
		if trusted {
			b.WriteString(part)
		} else {
			fmt.Fprintf(&b, "[%s]", part)
		}
	})
	return b.String()
}

func TestEveryOperationKeepsTheOriginOfText(t *testing.T) {
	dict := NewDict()
	dict.put(Untrusted("k"), Untrusted("v"))
	variables := map[string]Value{"u": Untrusted("aBc"), "w": Untrusted(" x y "), "d": dict, "l": NewList(Untrusted("p"), Trusted("q"))}
	for source, want := range map[string]string{
		"<{{ u }}>":                                              "<[aBc]>",
		"{{ '<' + u + '>' }}":                                    "<[aBc]>",
		"{{ '<' ~ u ~ 1 }}":                                      "<[aBc]1",
		"{{ u[1] }}{{ u[::-1] }}{{ u[1:] }}":                     "[BcBaBc]",
		"{{ ('<' + u)[:2] }}":                                    "<[a]",
		"{{ u | upper }}{{ u.lower() }}":                         "[ABCabc]",
		"{{ u | title }}{{ u.capitalize() }}":                    "[AbcAbc]",
		"{{ w | trim }}|{{ w.strip() }}":                         "[x y]|[x y]",
		"{{ w.split() | join('-') }}":                            "[x]-[y]",
		"{{ '-'.join(w.split(' ')) }}":                           "-[x]-[y]-",
		"{{ u.replace('B', '<>') }}":                             "[a]<>[c]",
		"{{ 'aBc'.replace('B', u) }}":                            "a[aBc]c",
		"{{ u | replace('', '.') }}":                             ".[a].[B].[c].",
		"{{ u | tojson }}":                                       `"[aBc]"`,
		"{{ d | tojson }}":                                       `{"[k]": "[v]"}`,
		"{{ d }}{{ [u] }}":                                       "{'[k]': '[v]'}['[aBc]']",
		"{{ u | e }}{{ u | safe }}{{ u | string }}":              "[aBcaBcaBc]",
		"{{ u * 2 }}":                                            "[aBcaBc]",
		"{{ u | indent(2, true) }}":                              "  [aBc]",
		"{{ l | join(u) }}":                                      "[paBc]q",
		"{{ l | first }}{{ l | last }}{{ l | sort | join }}":     "[p]q[p]q",
		"{{ u | reverse }}{{ u | list | join('.') }}":            "[cBaa].[B].[c]",
		"{{ '7'.rjust(3, u[0]) }}":                               "[aa]7",
		"{% set x %}<{{ u }}>{% endset %}{{ x }}":                "<[aBc]>",
		"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) }}":      "<[aBc]>",
		"{% filter upper %}a{{ u }}{% endfilter %}":              "A[ABC]",
		"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}": "[k]=[v]",
		"{{ d.k }}{{ d['k'] }}{{ d.get('k') }}":                  "[vvv]",
		"{{ u if u == 'aBc' else 'no' }}":                        "[aBc]",
		"{{ missing | default(u) }}":                             "[aBc]",
		"{{ namespace(a=u).a }}":                                 "[aBc]",
		"{{ 'x' if 'B' in u }}{{ u | length }}":                  "x3",
	} {
		got, err := render(source, variables)
		if err != nil || spell(got) != want {
			t.Errorf("%s: got %q, %v, want %q", source, spell(got), err, want)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for source, want := range map[string]string{
		"\n\n{{ missing.x }}":                    "jinja: line 3: \"missing\" is undefined, so it has no attribute \"x\"",
		"\n{% if 1 %}\n{{ 1 + 'a' }}{% endif %}": "jinja: line 3: a number + a string is not defined",
		"{{ 'a' | nosuch }}":                     "jinja: line 1: filter \"nosuch\" is not supported in chat templates",
		"\n{% include 'x' %}":                    "jinja: line 2: statement \"include\" is not supported in chat templates",
		"{% if 1 %}":                             "jinja: line 1: block without its {% endif %}, found the end of the template",
		"a\n{{ 'x":                               "jinja: line 2: string without an end",
	} {
		if _, err := render(source, nil); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", source, err, want)
		}
	}
}

// FuzzTemplate: no template panics or exceeds its limits.
func FuzzTemplate(f *testing.F) {
	variables, cases := language(f)
	for _, c := range cases {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, source string) {
		template, err := Parse(source)
		if err != nil {
			return
		}
		limits := Limits{Steps: 20_000, Depth: 50, Output: 1 << 16, Time: time.Second}
		out, err := template.Render(context.Background(), variables, now, limits)
		if err == nil && len(out.String()) > limits.Output {
			t.Errorf("%d bytes of output", len(out.String()))
		}
		if out.mask != "" && len(out.mask) != len(out.s) {
			t.Errorf("%d marks for %d bytes", len(out.mask), len(out.s))
		}
	})
}
