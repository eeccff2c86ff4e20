#!/usr/bin/env python3
"""Makes templates.jsonl: what jinja2 makes of templates, set up as transformers sets it up.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install jinja2==3.1.6
    /tmp/oracle/bin/python tests/storage/testdata/make_template_cases.py

One case a line: template, messages, add_generation_prompt, and either `output`, or `rejected` (the message given to
raise_exception), or `fails`.
"""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

OUTPUT = pathlib.Path(__file__).parent / "templates.jsonl"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

CONVERSATIONS = [
    [],
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": " Hi \n"}, {"role": "assistant", "content": "  Hello!  "}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},
     {"role": "user", "content": "Q2 \"x\" 'y' {{ no }}"}, {"role": "assistant", "content": "Ünïcode 😀 \n\n"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    [{"role": "user", "content": "u"}, {"role": "tool", "content": "{\"a\": 1}"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "<think>why</think>\nbecause"}],
]

# Templates of the shapes that models come with.
TEMPLATES = [
    # ChatML with a system message of its own.
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou answer.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # Roles that must alternate, the system message inside the first turn.
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    # Headers, trimmed content, BOS in the first turn.
    "{% set turns = messages %}{% for message in turns %}{% set content = '<|header|>' + message['role'] + '<|/header|>\n\n'"
    "+ message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}",
    # Tools, dates and defaults that no training conversation sets.
    """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not inline_tools is defined %}
    {%- set inline_tools = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}

{#- The system message goes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header|>system<|/header|>\\n\\n" }}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'python') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" + system_message + "<|eot|>" }}
{%- if inline_tools and not tools is none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) + "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|/header|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
""",
    # A namespace that counts, filters over messages, a look at the neighbours.
    """{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in messages if message.role != 'system' %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("turns must alternate, not at " ~ ns.index) }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if message == users[-1] %}{{- "[LAST]" }}{% endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '[RESULTS] {"content": ' + message.content|string + ", " }}
        {%- endif %}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- '}' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
""",
    # The last question looked for from behind, thoughts cut out of answers.
    """{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {{- thought if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) else '' }}
    {%- endif %}
    {{- '<' + message.role + '>' + content + '\\n' }}
{%- endfor %}
""",
    # Tags on lines of their own.
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    # What is trained on, marked.
    "{% for m in messages %}\n  {% if m.role == 'assistant' %}\n    {% generation %}\n{{ m.content }}\n  {% endgeneration %}\n"
    "{% else %}\n\t{{ m.content }}{% endif %}\n\n{% endfor %}\n\n",
]

EXPRESSIONS = [
    '1 + 2 * 3 - 4 // 3',
    '7 % 3 ~ -7 % 3 ~ 7 % -3 ~ (-7) // 2',
    '7 / 2',
    '1e3',
    '0.1 + 0.2',
    '1e16 ~ 1e-5 ~ 123456789.0 ~ 1.5e300',
    "'a' 'b' ~ 'c'",
    "'abc'[1:] ~ 'abc'[::-1] ~ 'abc'[-2] ~ 'abcdef'[1:5:2] ~ 'abcdef'[-1:-5:-2]",
    '[1,2,3][1:]',
    '[1, \'x\', none, true, 1.0, [2], {\'a\': 1}, (1,), (1,2), "it\'s", \'q"\', \'both\\\'"\', \'\\n\\t\\x01é😀\']',
    "{'a': 1, 'b': [1,2]} | tojson",
    "{'a': 1, 'b': [1,2], 'c': {}, 'd': []} | tojson(indent=2)",
    '\'é"\\\\\\n\\u2028\\x7f\' | tojson',
    'messages | tojson',
    'messages | length',
    "messages | map(attribute='role') | join(', ')",
    "messages | map(attribute='nope', default='?') | join(', ')",
    "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list",
    "messages | rejectattr('role', 'in', ['user','system']) | list | length",
    "messages | selectattr('content') | list | length",
    "[0,1,2,3,4] | select('odd') | list",
    "[0,1,2,3,4] | reject('divisibleby', 2) | join",
    "['a','b'] | map('upper') | join('-')",
    "'hello world foo-bar' | title",
    "'hELLO wORLD' | capitalize",
    "'hello wORLD it\\'s' .title()",
    "'  x '.strip() ~ '|' ~ ' x '.lstrip() ~ '|' ~ ' x '.rstrip() ~ '|'",
    "'xxaxx'.strip('x') ~ 'abcab'.strip('ab')",
    "'a,b,,c'.split(',')",
    "'  a  b c '.split()",
    "'  a  b c '.split(none, 1)",
    "'a,b,c'.split(',', 1)",
    "'a\\nb\\r\\nc\\n'.splitlines()",
    "'abc'.startswith('ab') and 'abc'.endswith(('x','c'))",
    "'abc'.replace('b','XX') ~ 'aaa'.replace('a','b',2) ~ ('abc' | replace('', '-'))",
    "'a-b' in 'xa-by' and 'q' not in 'xyz'",
    "1 in [1,2] and 3 not in (1,2) and 'a' in {'a':1}",
    '1 < 2 < 3',
    '1 < 2 > 3',
    '1 == 1.0 and true == 1',
    "'a' < 'b'",
    'none is none and x is undefined and messages is defined',
    "messages is iterable and messages is sequence and {} is mapping and 'a' is string and 1 is number and 1 is integer and 1.0 is float and true is boolean",
    '3 is odd and 4 is even and 9 is divisibleby 3 and 9 is divisibleby(3)',
    "1 is eq 1 and 1 is ne(2) and 1 is lt 2 and 2 is ge 2 and 'a' is in ['a']",
    'not 1 is none',
    "x | default('d') ~ ('' | default('e', true)) ~ (none | default('f')) ~ (false|d('g', boolean=true))",
    'x',
    'x.y',
    "x['y']",
    'messages[0].nope',
    'messages[0].nope.nope',
    'messages[99]',
    'none.foo',
    "'abc'.foo is defined",
    "'yes' if 1 else 'no'",
    "'yes' if 0",
    "('yes' if 0) is undefined",
    "'abc' | length ~ 'é😀' | length",
    "'abc' | upper | lower",
    "'abc' | first ~ ('abc' | last) ~ ([] | first is undefined)",
    "'12' | int + 1 ~ ('x' | int) ~ ('3.7' | int) ~ (3.9 | int) ~ ('x' | int(7)) ~ ('1.5' | float) ~ (true|int)",
    '-3 | abs',
    '(-3) | abs',
    '[3,1,2] | reverse | list',
    "'abc' | reverse",
    "'abc' | list",
    "{'a':1,'b':2} | list",
    "{'a':1,'b':2}.items() | list",
    "{'a':1,'b':2} | items | list",
    "{'a':1}.get('a') ~ {'a':1}.get('b') ~ {'a':1}.get('b', 5)",
    "{'a':1}.keys() | list ~ ({'a':1}.values() | list)",
    'range(3) | list',
    'range(1,10,3) | list',
    'range(5,0,-2) | list',
    'namespace(a=1).a',
    "dict(a=1, b='x')",
    '[1,2] + [3]',
    "'ab' * 3",
    "3 * 'ab'",
    "'a' + 1",
    '1 + none',
    "x + 'a'",
    "'a' ~ 1 ~ none ~ true ~ x ~ [1]",
    "'a\\nb\\n\\nc' | indent(2)",
    "'a\\nb\\n\\nc' | indent(2, true)",
    "'a\\nb\\n\\nc' | indent(2, first=true, blank=true)",
    "'a\\nb' | indent",
    "'Straße İ ς ΑΣ' | upper ~ ('ΑΣ ΑΣΣ İ' | lower)",
    "' \\x1c\\u3000a\\u00a0 ' | trim",
    "'xax' | trim('x')",
    '1,2',
    '(1,2)',
    '()',
    '[1,2,3,]',
    "{'a':1,}",
    "'abc'.find('c') ~ 'abc'.find('z') ~ 'aXbX'.count('X') ~ 'abcb'.rfind('b')",
    "'-'.join(['a','b'])",
    '5 is none',
    "1 == '1'",
    "[1,2] == [1,2] and [1] != [2] and {'a':1} == {'a':1} and (1,) != [1]",
    'messages == messages',
    "true and 'x' or 'y'",
    'false or none',
    'not not 1',
    '1 if 0 else 2 if 0 else 3',
    "'a' if true else 'b' ~ 'c'",
    '- 3 + + 2',
    '2 - -3',
    '1_000',
    "'\\101\\x41\\u0041\\q\\N'",
    '"a" | tojson | tojson',
    "messages[-1]['content'][:2]",
    "messages[1:][0].role if messages[1:] else 'none'",
    'messages[:-1] | length',
    '1 // 0',
    '1 % 0',
    "'abc'[5]",
    "'abc'[5:]",
    '[1,2,3][::2]',
    '[[1,2],[3]] | length',
    'true + 1',
    '1.0 * 2 ~ 7.5 // 2 ~ -7.5 % 2',
    '9223372036854775807',
    "'a' is lower and 'A' is upper",
    '[1,2]|join',
    "[1,none,'x']|join('-')",
    "messages|join('-', attribute='role')",
    "'x' is not defined",
    '1 is not none',
    'loop.index',
    "'a' in none",
    "3 | string + 'x'",
    '3.0 | string',
    '1e100',
    '[1.0, 2.5e-7] | tojson',
    'true | tojson',
    'none | tojson',
    'x | tojson',
    "'abc' | d('x')",
    "'{{' ~ '}}' ~ '{%'",
    "{'a': {'b': {}}}['a']['b'] | length",
    "'a|b'.split('|')[1]",
    "{'b': 1, 'A': 2, 'a': 3} | dictsort",
    "{'b': 1, 'A': 2, 'a': 0} | dictsort(true)",
    "{'b': 1, 'A': 2, 'a': 0} | dictsort(by='value', reverse=true)",
    "[3, 1, 2] | sort",
    "['b', 'A', 'a', 'C'] | sort ~ (['b', 'A'] | sort(case_sensitive=true, reverse=true))",
    "messages | sort(attribute='role') | map(attribute='content') | list",
    "[1, 'a'] | sort",
    "{'é': 1} | tojson(ensure_ascii=false)",
    "{'a': [1]} | tojson(indent=4, ensure_ascii=false)",
    "'removeprefix'.removeprefix('remove') ~ 'x.py'.removesuffix('.py')",
]

STATEMENTS = [
    '{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}',
    '{% for i in [] %}x{% else %}none{% endfor %}',
    "{% for k, v in {'a':1,'b':2}.items() %}{{k}}={{v}}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.previtem.content if loop.previtem is defined }}{{ loop.nextitem.content if not loop.last }}{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.cycle('a','b') }}{% endfor %}",
    '{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}',
    '{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}',
    '{% set a, b = 1, 2 %}{{ a }}{{ b }}',
    '{% set x %}hello {{ 1 + 1 }}{% endset %}{{ x | upper }}',
    '{% if x is defined %}a{% elif messages %}b{% else %}c{% endif %}',
    '{% if 0 %}{% endif %}{% if messages %}{% set y = 5 %}{% endif %}{{ y }}',
    '{% for i in [1,2] %}{% for j in [3,4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}',
    "{% for c in 'abc' %}{{ c }}-{% endfor %}",
    '{% for i in x %}a{% else %}b{% endfor %}',
    '{% for i in 5 %}a{% endfor %}',
    '{% for a, b in [[1,2],[3,4]] %}{{ a+b }}{% endfor %}',
    '{% for a, b in [[1,2,3]] %}{{ a+b }}{% endfor %}',
    '{% for (a, b) in [[1,2],[3,4]] %}{{ a+b }}{% endfor %}',
    "{%- set x = 'a' -%}   {{ x }}   {%- if true -%}  y  {%- endif %}  z",
    'a {# comment #} b {#- c -#} d',
    '{% if true %}{% for i in [1] %}{% if i == 1 %}{% set z = 3 %}{{ z }}{% endif %}{% endfor %}{{ z }}{% endif %}',
    "{{ raise_exception('no ' ~ 1) }}",
    '{% for m in messages %}{{ m.role }}{% endfor %}{{ m }}',
    '{% for i in 1, 2 %}{{ i }}{% endfor %}',
    "{{ 'a' if true }}{{ 'a' if false }}b",
    '{% set foo = messages %}{% set messages = [] %}{{ messages | length }}{{ foo | length }}',
    '{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}{{ ns.b is defined }}',
    '{% set nope.x = 1 %}',
    '{% set messages.x = 1 %}',
    '{% for i in range(3) %}{{ i }}{% endfor -%}',
    '   end',
    '{{ messages[0]["role"] -}}   x',
    'x  {{- 1 }}  {{+ 1 }}',
    '{% if true +%}',
    'a{% endif %}',
    ' {%+ if true %} a {% endif %}',
    'a\n  {% if true %}\n    b\n  {% endif %}\n c\n\n',
    '  {% if true %}  \n x {% endif %}\n\n\ny\n',
    '{% for i in [1,2] %}\n\t\t{{ i }}\n\t{# c #}\n{% endfor %}\n',
    'x\r\n{% if true %}\r\ny\r{% endif %}\r\n',
    "a  {%- if true -%}\n\n b {%- endif -%}\n\n c {{- 'd' -}} \n e",
    ' \n {#- x -#} \n b\n   {# y #}\n  c {# z #}\n',
    '{% if true %}\n\n{% if true %}\n{% endif %}\n{% endif %}\nq',
    '{% if true +%}\nq{% endif %}\n  {%+ if true %} z {% endif %}',
    "{{ 'a' }}\n{{ 'b' }}\n",
    '\xa0{% if true %}x{% endif %}\u2028{%- if true -%}\u3000y{% endif %}',
    # Macros: arguments by place and by name, defaults, scopes, calls of each other and of themselves.
    "{% macro f(a, b='B') %}{{ a }}{{ b }};{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}",
    "{% macro f(a, b=a ~ 'x') %}{{ b }}{% endmacro %}{{ f('y') }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(c=2) }}",
    "{% macro f(a) %}{{ a is defined }}{{ b is defined }}{% endmacro %}{{ f() }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{{ y }}{% endmacro %}{% set y = 2 %}{% for y in [7] %}{{ f() }}{% endfor %}",
    "{% macro f() %}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{{ x }}",
    "{% macro f(ns) %}{% set ns.x = ns.x + 1 %}{% endmacro %}{% set ns = namespace(x=1) %}{{ f(ns) }}{{ f(ns) }}{{ ns.x }}",
    "{% macro f() %}{% set ns.x = 9 %}{% endmacro %}{% set ns = namespace(x=1) %}{{ f() }}{{ ns.x }}",
    "{% macro tree(v) %}{% if v is mapping %}{ {%- for k, w in v | dictsort %}{{ k }}:{{ tree(w) }}{% if not loop.last %},{% endif %}"
    "{% endfor %} }{% elif v is string %}{{ v }}{% elif v is iterable %}[{% for w in v %}{{ tree(w) }};{% endfor %}]"
    "{% else %}{{ v }}{% endif %}{% endmacro %}{{ tree({'b': [1, {'c': 'x'}], 'A': none, 'a': {}}) }}",
    "{{ later() }}{% macro later() %}x{% endmacro %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro f() -%}   x   {%- endmacro %}[{{ f() | upper }}{{ f() ~ 'y' }}{% set z = f() %}{{ z | length }}]",
    "{% macro f(x) %}{% for i in x %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{% for i in [1] %}{{ f('ab') }}{{ loop.index }}{% endfor %}",
    "{% macro f(a) %}{% if a %}{{ f(a[1:]) }}{{ a[0] }}{% endif %}{% endmacro %}{{ f('abcdef') }}",
    "{% macro f() %}{{ raise_exception('in f') }}{% endmacro %}{{ f() }}",
    "{{ strftime_now('%d %B %Y') }}{{ strftime_now('%Y-%m-%d') }}{{ strftime_now is defined }}{{ range is defined }}",
]

class Generation(jinja2.ext.Extension):
    """{% generation %} of transformers: marks, changes nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class Rejected(Exception):
    pass


def raise_exception(message):
    raise Rejected(message)


def to_json(value, ensure_ascii=False, indent=None):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def strftime_now(format):
    """The one day that our templates know."""
    return datetime.date(2024, 7, 26).strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def case(template, messages, add_generation_prompt):
    out = {"template": template, "messages": messages, "add_generation_prompt": add_generation_prompt}
    try:
        out["output"] = environment().from_string(template).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **TOKENS)
    except Rejected as error:
        out["rejected"] = str(error)
    except Exception:  # whatever Python raises for a wrong operation
        out["fails"] = True
    return out


def cases():
    for template in TEMPLATES:
        for messages in CONVERSATIONS:
            for add_generation_prompt in (False, True):
                yield case(template, messages, add_generation_prompt)
    for template in STATEMENTS + ["{{ " + expression + " }}" for expression in EXPRESSIONS]:
        yield case(template, CONVERSATIONS[3], False)


def main():
    OUTPUT.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in cases()))


if __name__ == "__main__":
    main()
