// Which names come through. Names of files reach shells: Nextflow quotes those of the paths that it
// stages, but not all that a shell knows. So only names of harmless characters enter.

// The path that a parameter names, read as it stands: a star is no pattern here. Of an address, such
// as s3://bucket/raw, the names are those within its file system.
def local_path(option, text) {
    if (!(text.toString() ==~ /(?s)[A-Za-z][A-Za-z0-9+.-]+:.*/)) {
        check_names("${option} ${text}", text.toString().tokenize('/'))
    }
    safe_place("${option} ${text}", opened(option, text))
}

def opened(option, text) {
    try {
        return file(text.toString(), glob: false)
    }
    catch (IllegalStateException problem) {
        error("${option} ${text}: this Nextflow cannot read it (${problem.message}); copy it here, or see docs/cloud.md")
    }
}

// The path itself, once every name on it is harmless; also those that links on the way lead to.
def safe_place(what, path) {
    def real = path.fileSystem.provider().scheme == 'file' && path.exists() ? path.toRealPath() : path
    check_names(what, (path.toList() + real.toList())*.toString())
    path
}

def check_names(what, names) {
    names.findAll { name -> !is_harmless(name) }.each { name ->
        error("${shown(what)}: a folder or file is called ${shown(name)}; expected letters, digits, spaces and . _ , = @ % + ( ) ' & : - in it, no dash first and no space last; rename it")
    }
}

def is_harmless(name) {
    name ==~ /(?!-)[\p{L}\p{M}\p{N} ._,=@%+()'&:-]+(?<! )/
}

// A text without what would break a line, or steer a terminal.
def shown(text) {
    text.toString().replaceAll(/\p{C}/) { letter -> String.format('\\u%04x', letter.codePointAt(0)) }
}

// The folders that a run itself lies in and works with.
def check_own_places(given) {
    [
        'the launch folder': workflow.launchDir,
        'the pipeline': projectDir,
        'the work folder (-work-dir)': workflow.workDir,
        '--output': local_path('--output', given.output),
    ].each { what, path -> safe_place("${what} ${path}", path) }
}
