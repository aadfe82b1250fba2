// Parameters as people give them: what is wrong with them, and the text of --help.

include { read_schema; schema_properties; typed } from './schema'
include { shown } from './text'

// Everything wrong with the given parameters, one line each.
def param_problems(given, schema) {
    def known = schema_properties(schema)
    def former = former_params()
    def unknown = given.keySet().findAll { name -> !known.containsKey(name) }
        .collect { name -> "--${shown(name)}: ${instead_of(name, known.keySet(), former)}" }
    def missing = schema['$defs'].values().collectMany { group -> group.required ?: [] }
        .findAll { name -> given[name] == null }
        .collect { name -> "--${name}: missing; expected ${lower_first(known[name].description)}" }
    def wrong = known
        .findAll { name, property -> given[name] != null && !is_valid(typed(given[name], property), property) }
        .collect { name, property ->
            def told = former["${name} ${given[name]}".toString()]
            "--${name} ${shown(given[name])}: expected ${expectation(property)}${told ? "; ${told}" : ''}"
        }
    unknown + missing + wrong
}

def is_valid(value, property) {
    def right_type = [
        boolean: value instanceof Boolean,
        integer: value instanceof Integer || value instanceof Long,
        number: value instanceof Number,
        // A line break would also end Nextflow's own note of the launch, which -resume reads.
        string: value instanceof String && !(value =~ /\p{Cntrl}/),
    ][property.type]
    right_type &&
        (property['enum'] == null || value in property['enum']) &&
        (property.pattern == null || value.matches(property.pattern)) &&
        (property.minimum == null || value >= bound(property.minimum)) &&
        (property.maximum == null || value <= bound(property.maximum)) &&
        (property.exclusiveMinimum == null || value > bound(property.exclusiveMinimum))
}

// Nextflow's reader of JSON gives negative numbers as text.
def bound(value) {
    value.toString().toBigDecimal()
}

// What a property takes, in words.
def expectation(property) {
    if (property['enum']) {
        return "one of ${property['enum'].join(', ')}"
    }
    if (property.errorMessage) {
        return property.errorMessage
    }
    def words = [boolean: 'true or false', integer: 'a whole number', number: 'a number', string: 'text on one line'][property.type]
    def bounds = [
        property.minimum == null ? null : "from ${property.minimum}",
        property.exclusiveMinimum == null ? null : "above ${property.exclusiveMinimum}",
        property.maximum == null ? null : "to ${property.maximum}",
        property.unit == null ? null : "(${property.unit})",
    ]
    ([words] + bounds.findAll { part -> part != null }).join(' ')
}

// What linumpy/migration.json says of the parameters of another pipeline; an installed workflow
// lies in a folder beside it.
def former_params() {
    // In a clone, and where the workflow was installed with the package.
    def places = ['../../linumpy/migration.json', '../../../migration.json']
        .collect { place -> moduleDir.resolve(place).normalize() }
    read_schema(places.find { path -> path.exists() }).params
}

// What to type instead of a name that is not known.
def instead_of(name, known, former) {
    def told = former[name.replace('-', '_')]
    if (told && told != 'same') {
        return told =~ /^--\S+$/ ? "is called ${told} here" : told
    }
    def near = nearest(name, known)
    "there is no such parameter${near ? "; did you mean --${near}?" : ''}"
}

// The known name that takes the fewest changes to reach, few enough for a slip of the keyboard, or null.
def nearest(name, known) {
    def plain = name.replace('-', '_').toLowerCase()
    def near = known.min { candidate -> edit_distance(plain, candidate) }
    edit_distance(plain, near) <= 1 + plain.size().intdiv(5) ? near : null
}

def edit_distance(first, second) {
    def start = (0..second.size()).toList()
    first.toList().inject(start) { above, letter ->
        second.toList().withIndex().inject([above[0] + 1]) { row, other ->
            def replaced = above[other[1]] + (letter == other[0] ? 0 : 1)
            row + [[row[-1] + 1, above[other[1] + 1] + 1, replaced].min()]
        }
    }[-1]
}

def help_text(schema, columns) {
    def width = [[columns?.isInteger() ? columns.toInteger() : 100, 72].max(), 110].min()
    def names = schema_properties(schema).keySet()
    def indent = names*.size().max() + 6
    def groups = schema['$defs'].values().collect { group ->
        def lines = group.properties.collect { name, property ->
            def note = [
                property.description,
                property['enum'] ? "One of ${property['enum'].join(', ')}." : '',
                "[${[property.type, property.unit].findAll { part -> part }.join(', ')}${default_text(property)}]",
            ].findAll { part -> part }.join(' ')
            "  --${name}".padRight(indent) + wrap(note, width - indent).join('\n' + ' ' * indent)
        }
        "${group.title}: ${group.description}\n" + lines.join('\n')
    }
    def title = wrap("${schema.title}: ${schema.description}", width).join('\n')
    def usage = '  linum_nextflow.py run linumpy --input FOLDER --output FOLDER [-resume]'
    ([title, usage] + groups).join('\n\n') + '\n'
}

def default_text(property) {
    if (property['default'] == null) {
        return ''
    }
    "; default: ${property['default']}"
}

// Words of a text in lines of at most the given width.
def wrap(text, width) {
    text.split(' ').inject(['']) { lines, word ->
        def longer = (lines[-1] + ' ' + word).trim()
        longer.size() <= width || lines[-1] == '' ? lines[0..<-1] + [longer] : lines + [word]
    }
}

def lower_first(text) {
    text[0].toLowerCase() + text.substring(1)
}
