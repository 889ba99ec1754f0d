"""Chat templates in the style of the popular families, for the tiny model's three control tokens.

Own text: each has the traits of its family that change a prompt, not the words of any model's template.
"""

# Turns between control tokens, tools as XML-tagged JSON, results folded into user turns, thinking switched off by an
# empty block.
CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set text = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is defined and message.reasoning_content %}
            {{- '<think>\\n' + (message.reasoning_content | string).strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- text }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + text + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if documents %}
    {%- for document in documents %}{{- '[' + document.title + '] ' + document.text + '\\n' }}{%- endfor %}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# A start token, header tokens around the role, trimmed contents, the date, tools as indented JSON in the first turn.
HEADERS = """\
{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- '<|im_start|>system\\n\\nToday Date: ' + date + '\\n\\n' }}
{%- if reasoning_effort is defined %}{{- 'Effort: ' + reasoning_effort + '\\n' }}{%- endif %}
{{- system_message + eos_token }}
{%- for message in messages %}
    {%- if message.role in ('tool', 'ipython') %}
        {{- '<|im_start|>ipython\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- eos_token }}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' }}
        {%- for call in message.tool_calls %}{{- call | tojson }}{%- endfor %}
        {{- eos_token }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' }}
        {%- if loop.first and tools is not none %}
            {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
        {%- endif %}
        {{- message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}
"""

# Strict turns: no role but user and assistant may follow the first, and they alternate, or the request is refused.
ALTERNATING = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first_prefix = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<|im_start|>' + role + '\\n' + (first_prefix if loop.first else '') }}
    {%- if message['role'] == 'assistant' -%}
        {% generation %}{{ message['content'] | trim }}{% endgeneration %}
    {%- else -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>model\\n' }}{%- endif -%}
"""

# Loops over content parts, so it is given them; knows the developer role; prints parts it does not know as JSON.
PARTS = """\
{%- macro render_content(content) -%}
    {%- if content is string -%}{{- content -}}
    {%- else -%}
        {%- for item in content -%}
            {%- if item.type == 'text' -%}{{- item.text -}}
            {%- else -%}{{- item | tojson(sort_keys=true, separators=(',', ':')) -}}{%- endif -%}
            {%- if item.keys() | length > 2 -%}{{- item | tojson -}}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message.role == 'skipped' -%}{%- continue -%}{%- endif -%}
    {{- '<|im_start|>' + message.role -}}
    {%- if message.name -%}{{- ' name=' + message.name -}}{%- endif -%}
    {%- if message.role == "developer" and message.tools -%}{{- message.tools | tojson -}}{%- endif -%}
    {{- '\\n' + render_content(message.content) -}}
    {%- if message.tool_calls -%}{{- message.tool_calls | tojson(ensure_ascii=true) -}}{%- endif -%}
    {%- if message.tool_call_id -%}{{- '[' + message.tool_call_id + ']' -}}{%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

TEMPLATES = {
    "chatml_tools": CHATML_TOOLS,
    "headers": HEADERS,
    "alternating": ALTERNATING,
    "parts": PARTS,
}
