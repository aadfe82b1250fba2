// Text for people and for programs.

// A text without what would break a line, or steer a terminal.
def shown(text) {
    text.toString().replaceAll(/\p{C}/) { letter -> '\\u' + Integer.toHexString(letter.codePointAt(0)).padLeft(4, '0') }
}

// What is asked of Python, and the standard input of tasks, are JSON.
def to_json(value) {
    groovy.json.JsonOutput.toJson(value)
}
