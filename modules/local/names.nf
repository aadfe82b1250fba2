// A text without what would break a line, or steer a terminal.
def shown(text) {
    text.toString().replaceAll(/\p{C}/) { letter -> '\\u' + Integer.toHexString(letter.codePointAt(0)).padLeft(4, '0') }
}
