// Text for people and for programs.

// A text without what would break a line, or steer a terminal.
def shown(text) {
    text.toString().replaceAll(/\p{C}/) { letter -> '\\u' + Integer.toHexString(letter.codePointAt(0)).padLeft(4, '0') }
}

// What is asked of Python, records and the standard input of tasks are JSON.
def to_json(value) {
    groovy.json.JsonOutput.toJson(value)
}

// What the result is called.
def brain_name(given, subject) {
    given.mode == '2.5d' ? "${subject}_2d.ome.zarr" : "${subject}.ome.zarr"
}
