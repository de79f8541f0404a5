//! Small templates in the manner of well-known ones.

/// Messages, thoughts and calls as Qwen has them.
pub(crate) const HERMES: &str = r#"{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools> as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role != 'system' or not tools %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// The same with thoughts.
pub(crate) const THINKING_HERMES: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>
{% endif %}{% endif %}"#;

/// Calls as GLM has them.
pub(crate) const GLM: &str = r#"[gMASK]<sop>
{%- for tool in tools or [] %}{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- else %}<|{{ m.role }}|>
{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{%- endfor %}
</tool_call>{% endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// Calls as Llama 3 has them: one at a time.
pub(crate) const LLAMA: &str = r#"{{ bos_token }}
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) }}
{% endfor %}{% if tools %}Answer {"name": function name, "parameters": dictionary of argument name and its value}.{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- set call = m.tool_calls[0].function %}<|assistant|>{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot|>
{%- else %}<|{{ 'ipython' if m.role == 'tool' else m.role }}|>{{ m.content }}<|eot|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// Calls as Mistral has them: a list, and ids of nine characters.
pub(crate) const MISTRAL: &str = r#"{{ bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}
{{- {"name": call.function.name, "arguments": call.function.arguments, "id": call.id} | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}]{{ eos_token }}
{%- elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}
{%- else %}{{ raise_exception('only user, assistant and tool') }}{% endif %}
{%- endfor %}"#;

/// The later form of the same.
pub(crate) const MISTRAL_ARGS: &str = r#"{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}{% for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- else %}[{{ m.role | upper }}]{{ m.content }}{% endif %}
{%- endfor %}"#;

/// A template that knows three roles and no tools.
pub(crate) const PLAIN: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
                                {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// A template that refuses system messages.
pub(crate) const NO_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}\
                                    {% endif %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}\
                                    {% if add_generation_prompt %}<assistant>{% endif %}";
