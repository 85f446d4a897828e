"""Settings of a build that the command line gives."""

Text = provider(fields = ["value"])

def _impl(context):
    return [Text(value = context.build_setting_value)]

string_flag = rule(implementation = _impl, build_setting = config.string(flag = True))
