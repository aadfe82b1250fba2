// nextflow_schema.json: which parameters there are, what they are given, and who consumes them.

include { to_json } from './text'

// A JSON object as a map; Nextflow's own reader gives it as entries.
def read_schema(path) {
    path.splitJson().collectEntries { entry -> [entry.key, entry.value] }
}

// All properties of the schema by name, in the schema's order.
def schema_properties(schema) {
    schema['$defs'].values().inject([:]) { all, group -> all + group.properties }
}

// The value as the schema means it: `--slices 7` arrives as a number.
def typed(value, property) {
    if (value == null) {
        return null
    }
    if (property.type == 'string') {
        return value instanceof Boolean ? value : value.toString()
    }
    if (value instanceof Double && !Double.isFinite(value)) {
        return value.toString()
    }
    property.type == 'number' && value instanceof Double ? value.toBigDecimal() : value
}

// All parameters in the schema's order, then given ones that it does not know, without their value.
def typed_params(given, schema) {
    def known = schema_properties(schema).collectEntries { name, property -> [name, typed(given[name], property)] }
    known + (given.keySet() - known.keySet()).collectEntries { name -> [name, null] }
}

// The parameters that a process consumes, as JSON for its standard input. Another process's
// parameter is not in it, so changing that one leaves this process's cached tasks valid.
def stage_params(process_name, given, schema, more = [:]) {
    def consumed = schema_properties(schema)
        .findAll { _name, property -> process_name in (property.stages ?: []) }
        .collectEntries { name, property -> [name, typed(given[name], property)] }
    to_json(new TreeMap(consumed + more))
}

// What the report tells about the run, as JSON: parameters, and the time of each task.
def run_json(rows, given, schema) {
    to_json([
        nextflow: workflow.nextflow.version.toString(),
        params: typed_params(given, schema).findAll { name, _value -> !(name in ['help', 'overwrite']) },
        tasks: rows.collect { process_name, tag, seconds ->
            [process: process_name.tokenize(':')[-1], tag: tag, seconds: seconds.toInteger()]
        },
    ])
}
