"""Writes golden.json and ../jinja/testdata/language.json with Python's Jinja (pip install jinja2==3.1.6), set up as the
reference library sets it up for chat templates. Run by hand after a change to the templates, conversations or snippets."""
import datetime
import json
import os

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 3, 7, 9, 5, 2)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: NOW.strftime(f)


def outcome(source, variables):
    try:
        return {"want": env.from_string(source).render(**variables)}
    except jinja2.exceptions.TemplateError as e:
        raised = type(e) is jinja2.exceptions.TemplateError
        return {"raised": str(e)} if raised else {"error": type(e).__name__}
    except Exception as e:
        return {"error": type(e).__name__}


def templates():
    conversations = json.load(open(os.path.join(HERE, "conversations.json")))
    out = {}
    for name in sorted(os.listdir(os.path.join(HERE, "templates"))):
        source = open(os.path.join(HERE, "templates", name)).read()
        nones = any(f"{q}content{q}] is none" in source for q in "'\"")
        results = {}
        for c in conversations:
            messages = []
            for m in c["messages"]:
                m = dict(m)
                if m.get("tool_calls"):
                    if not m["content"] and nones:
                        m["content"] = None
                    m["tool_calls"] = [
                        {**({"id": t["id"]} if t.get("id") else {}), "type": "function",
                         "function": {"name": t["name"], "arguments": t["arguments"]}} for t in m["tool_calls"]]
                messages.append(m)
            variables = dict(messages=messages, add_generation_prompt=c.get("add_generation_prompt", False),
                             bos_token="<bos>", eos_token="<eos>", **c.get("extra", {}))
            if c.get("tools"):
                variables["tools"] = c["tools"]
            else:
                variables["tools"] = None
            results[c["name"]] = outcome(source, variables)
        out[name] = results
    json.dump(out, open(os.path.join(HERE, "golden.json"), "w"), ensure_ascii=False, indent=1)
    return out


VARIABLES = json.loads(r"""{
 "name": "Ada", "n": 3, "f": 2.5, "yes": true, "no": false, "nothing": null, "empty": "", "text": "  Hello, World! it's  ",
 "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": {"a": {"b": [1, {"c": "deep"}]}, "items": "own", "list": []},
 "people": [{"name": "Ada", "age": 36, "tags": ["x"]}, {"name": "alan", "age": 41}, {"name": "Grace", "age": 36, "admin": true}],
 "uni": "na\u00efve \u4e2d\u6587 \ud83d\ude42 \u0130\u00df", "code": "a <b> & \"c\" 'd' \\ \n\t\u0001", "numbers": [1, 2.0, 1e16, 1e-5, 0.1, -0.0, 123456789012345680.0, 100.0]
}""")

SNIPPETS = r"""
{{ name }}|{{ n }}|{{ f }}|{{ yes }}|{{ no }}|{{ nothing }}|{{ missing }}|{{ empty }}
{{ list }}|{{ nested }}|{{ words }}|{{ (1, 2) }}|{{ (1,) }}|{{ () }}|{{ [] }}|{{ {} }}|{{ {'a': 1, "b": [none, true]} }}
{{ numbers }}
{{ numbers | tojson }}
{{ code }}|{{ [code] }}|{{ code | tojson }}
{{ uni | upper }}|{{ uni | lower }}|{{ uni | title }}|{{ uni | capitalize }}|{{ [uni] }}
{{ uni[0] }}{{ uni[-1] }}{{ uni[2:7] }}|{{ uni[::-1] }}|{{ uni[-3:] }}|{{ uni[:-2] }}|{{ uni | length }}
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}
{{ 1 ~ 'a' ~ 2.0 ~ none ~ true }}|{{ 'ab' * 3 }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}
{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 1 == 1.0 }}|{{ true == 1 }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ none == missing }}|{{ missing == missing2 }}
{{ 'a' in 'abc' }}|{{ 2 in list }}|{{ 'x' not in nested }}|{{ 'a' in nested }}|{{ not 'a' in nested }}|{{ 1 in missing }}
{{ yes and name }}|{{ no or name }}|{{ empty or nothing or 'last' }}|{{ not empty }}|{{ no and missing.x }}|{{ yes or missing.x }}
{{ 'a' if yes }}|{{ 'a' if no }}|{{ 'a' if no else 'b' }}|{{ 'a' if no else 'b' if no else 'c' }}
{{ nested.a.b[1].c }}|{{ nested['a']['b'][0] }}|{{ nested.items is string }}|{{ nested['items'] }}|{{ nested.zzz }}|{{ nested.a.b.1.c }}
{{ list[0] }}{{ list[-1] }}|{{ list[5] }}|{{ list[1:] }}|{{ list[::-1] }}|{{ list[:2] }}|{{ list[-2:] }}|{{ list[10:] }}|{{ list[::2] }}|{{ list[2:0:-1] }}
{{ text | trim }}|{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'xyabyx' | trim('xy') }}
{{ text.split() }}|{{ text.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ' a  b c '.split(none, 1) }}|{{ 'a\nb\r\nc'.splitlines() }}
{{ text.replace('l', 'L') }}|{{ text.replace('l', 'L', 1) }}|{{ text | replace('l', 'L', 1) }}|{{ 'ab'.replace('', '-') }}|{{ 'ab'.replace('', '-', 2) }}
{{ name.startswith('A') }}|{{ name.endswith(('x', 'a')) }}|{{ name.upper() }}|{{ name.lower() }}|{{ "it's a test-case".title() }}|{{ "it's a test-case" | title }}
{{ 'abc'.find('c') }}|{{ 'abc'.find('z') }}|{{ 'abcabc'.count('b') }}|{{ '5'.zfill(3) }}|{{ '-5'.zfill(4) }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ '12'.isdigit() }}|{{ 'a1'.isalpha() }}
{{ ', '.join(words) }}|{{ words | join('-') }}|{{ list | join }}|{{ people | join(', ', attribute='name') }}|{{ [1, none, 'x'] | join('/') }}
{{ list | first }}{{ list | last }}|{{ 'abc' | first }}{{ 'abc' | last }}|{{ [] | first }}|{{ list | length }}|{{ nested | count }}|{{ missing | length }}
{{ missing | default('d') }}|{{ empty | default('d') }}|{{ empty | default('d', true) }}|{{ none | d('x') }}|{{ missing | default }}
{{ people | selectattr('age', 'equalto', 36) | map(attribute='name') | list }}|{{ people | rejectattr('admin') | map(attribute='name') | join(',') }}|{{ people | selectattr('admin', 'defined') | list | length }}
{{ people | map(attribute='admin', default='no') | join(',') }}|{{ words | map('upper') | join }}|{{ words | map('replace', 'a', 'z') | list }}|{{ list | select('odd') | list }}|{{ list | reject('gt', 1) | list }}|{{ [0, 1, '', 'a'] | select | list }}
{{ list | sort }}|{{ words | sort }}|{{ words | sort(case_sensitive=true) }}|{{ list | sort(reverse=true) }}|{{ people | sort(attribute='age') | map(attribute='name') | list }}|{{ nested | dictsort | map('first') | list }}
{{ list | sum }}|{{ people | sum(attribute='age') }}|{{ list | min }}{{ list | max }}|{{ words | unique | list }}|{{ [1, 1, 2] | unique | list }}|{{ list | reverse | list }}|{{ 'abc' | reverse }}
{{ '42' | int }}|{{ 'x' | int }}|{{ 'x' | int(7) }}|{{ '3.7' | int }}|{{ 3.9 | int }}|{{ '2.5' | float }}|{{ 2 | float }}|{{ -3 | abs }}|{{ 2.567 | round(2) }}|{{ 2.5 | round }}|{{ 2.1 | round(method='ceil') }}|{{ true | int }}
{{ nested | items | list | length }}|{{ {'a': 1}.items() | list }}|{{ {'a': 1}.keys() | list }}|{{ {'a': 1}.values() | list }}|{{ {'a': 1}.get('b', 2) }}|{{ {'a': 1}.get('b') }}|{{ {'a': 1}.get('a') }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\nb' | indent('> ') }}|{{ list | batch(2) | list }}|{{ list | batch(2, 'x') | list }}|{{ 5 | string + '!' }}|{{ [1, 2] | string }}
{{ nested | tojson }}|{{ nested | tojson(indent=2) }}|{{ [] | tojson(indent=2) }}|{{ uni | tojson(ensure_ascii=true) }}|{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}|{{ {'b': 1} | tojson(separators=(',', ':')) }}|{{ {1: 2, none: 3, true: 4} | tojson }}
{{ x is defined }}|{{ name is defined }}|{{ x is undefined }}|{{ nothing is none }}|{{ name is string }}|{{ nested is mapping }}|{{ list is iterable }}|{{ name is iterable }}|{{ n is iterable }}|{{ list is sequence }}|{{ n is number }}|{{ yes is number }}|{{ n is integer }}|{{ yes is integer }}|{{ f is float }}|{{ yes is boolean }}|{{ yes is true }}|{{ 1 is true }}|{{ no is false }}
{{ n is odd }}|{{ n is even }}|{{ n is divisibleby 3 }}|{{ n is divisibleby(2) }}|{{ n is eq 3 }}|{{ n is ne 3 }}|{{ n is gt 2 }}|{{ n is in list }}|{{ 'A' is upper }}|{{ 'a' is lower }}|{{ n is not none }}|{{ not n is none }}|{{ n is sameas 3 }}|{{ range is callable }}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}
{% for k, v in nested.a.items() %}{{ k }}={{ v }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}{% for x in missing %}{% else %}gone{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}{% for k in nested %}{{ k }},{% endfor %}
{% for x in list if x > 1 %}{{ x }}{{ loop.length }}{{ loop.index }}{% if not loop.last %},{% endif %}{% else %}no{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}|{{ range(3) | list }}|{{ range(1, 7, 2) | list }}|{{ range(3, 0, -1) | list }}
{% set x = 1 %}{% for i in list %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}|{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in list %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.zzz }}|{% set ns2 = namespace({'k': 5}) %}{{ ns2.k }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set t = 1, 2 %}{{ t }}|{% set s %}in {{ name }} out{% endset %}{{ s | upper }}|{% set s | upper | replace('N', 'M') %}in{% endset %}{{ s }}|{{ s is string }}
{% macro m(a, b='d', c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 2) }}|{{ m(b=5, a=4) }}|{{ m() }}|{{ m(1, c=2) | upper }}
{% macro fact(k) %}{% if k < 2 %}1{% else %}{{ k * fact(k - 1) | int }}{% endif %}{% endmacro %}{{ fact(5) }}|{% set y = 1 %}{% macro q() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ q() }}
{% filter upper %}abc {{ name }}{% endfilter %}|{% with a = 1, b = name %}{{ a }}{{ b }}{% endwith %}{{ a }}|{% generation %}gen {{ name }}{% endgeneration %}|{% raw %}{{ not }} {% if %}{% endraw %}
{% if n > 5 %}big{% elif n > 2 %}mid{% else %}small{% endif %}|{% if missing %}x{% endif %}|{% if nested.list %}x{% else %}empty{% endif %}
{# comment #}a{#- c -#} b {# multi
line #} c
  {% if true %}
  indented
  {% endif %}
end
  {%+ if true %}kept{% endif +%}
next
  {%- if true -%}
   tight
  {%- endif -%}
  done
line
{{- ' joined ' -}}
next {{ name -}} , {{- n }}
<ul>
  {% for x in list %}
  <li>{{ x }}</li>
  {% endfor %}
</ul>
  {# block comment #}
after
{{ "a\tb\"c\'d\\e\x41\u4e2d\n" }}|{{ 'it''s' }}|{{ "con" "cat" }}|{{ 1_000 }}|{{ 1e3 }}|{{ 1.5e-3 }}|{{ '\d\q' }}
{{ {'a': {'b': {}}}['a'] }}|{{ {'x': '}}'} }}|{{ ('a', 'b')[1] }}|{{ [[1, 2], [3]][0][1] }}|{{ -n }}|{{ +n }}|{{ -n | abs }}|{{ (-n) | abs }}|{{ - 2 ** 2 }}
{{ dict(a=1, b=2) }}|{{ dict({'x': 1}, y=2) }}|{{ nested.get('a', {}).get('b')[0] }}|{{ people[0].tags[0] }}|{{ people[:1] | map(attribute='tags.0') | list }}|{{ people | map(attribute='name') | map('length') | sum }}
{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A, %B %-d %j %I %p %y %%') }}
{{ name.foo }}|{{ none.foo }}|{{ n.foo }}|{{ list.foo }}|{{ nested.a.foo }}|{{ name['foo'] }}
{{ '<b>' | e }}|{{ '<b>' | safe }}|{{ "a'b\"" | escape }}|{{ nested | attr('get') is callable }}|{{ [3, [1, 'x']] | string }}
{{ raise_exception('no ' ~ name) }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing() }}
{{ nested.foo.bar }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ none + 'a' }}
{{ 'a' + missing }}
{{ missing ~ 'a' }}
{{ 1 / 0 }}
{{ n() }}
{{ list.append(4) }}
{{ nested.update({'x': 1}) }}
{{ 'a'.__class__ }}
{{ ''.__class__.__mro__ }}
{{ list | tojson(indent=missing) }}
{{ missing | tojson }}
{{ 'a' < 1 }}
{{ [1, 'a'] | sort }}
{% for x in n %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% set a, b = [1] %}
{% set name.x = 1 %}
{{ range(1000000) }}
{{ fact(1) }}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% call f() %}x{% endcall %}
{% if true %}
{% endif %}
{{ name
{{ name | nosuch }}
{{ name is nosuch }}
{{ }}
{{ 1 2 }}
{% set %}
{% for x %}{% endfor %}
{{ 'abc }}
{{ (1 }}
{{ a b }}
{% nosuch %}
{% break %}
""".strip("\n")


def language():
    # A snippet is a line; the layout snippets, which need several, are joined here.
    lines = SNIPPETS.split("\n")
    snippets, layout = [], []
    inside = False
    for line in lines:
        if line.startswith("{# comment #}"):
            inside = True
        if line.startswith('{{ "a\\tb'):
            inside = False
        (layout if inside else snippets).append(line)
    text = "\n".join(layout)
    snippets += [text, text + "\n", text + "\n\n", text.replace("\n", "\r\n")]
    snippets += ["a\n{% if true %}\n\nb\n{% endif %}\n\n", "{% if true %}   \nx{% endif %}", "  {{ name }}\n  {% set x = 1 %}  \n y",
                 "\t{%- set x = 1 %}\n\n z", "{% raw %}\n a {% endraw %}\nb", "  {%- raw -%}  \n a  {%- endraw -%}  b", "x {{- name -}}\n y", "{%- for x in list %}\n{{ x }}\n{%- endfor %}\n", "   {# c #}\nx", "x   {# c #}\ny", "{#- c #}\n\nx  {#- d #}y", "a {%- if yes %} b {%- endif %} c"]
    out = [{"template": s, **outcome(s, json.loads(json.dumps(VARIABLES)))} for s in snippets]
    path = os.path.join(HERE, "..", "jinja", "testdata")
    os.makedirs(path, exist_ok=True)
    json.dump({"variables": VARIABLES, "cases": out}, open(os.path.join(path, "language.json"), "w"), ensure_ascii=False, indent=1)
    return out


if __name__ == "__main__":
    t = templates()
    l = language()
    print(len(l), "snippets,", sum("error" in c for c in l), "errors;", {k: [n for n, c in v.items() if "want" not in c] for k, v in t.items()})
