// What earlier launches left in the work folder, looked at before a resumed run starts. Nextflow
// takes the outputs of a finished task as they are, and gives the folder of an unfinished one to a
// new task, be the old one still at work. conf/base.config has each task note whose it is, hold a
// lock, and list what it leaves.

include { run_command } from './launch'

// Wait for tasks that a killed launch left running, clean up after those that are no more, and have
// tasks run again whose files are not what they left. An object store has none of these notes.
def mend_work() {
    if (!workflow.resume || workflow.workDir.fileSystem.provider().scheme != 'file' || !workflow.workDir.exists()) {
        return
    }
    unfinished_tasks().each { folder -> wait_for(folder) }
    unfinished_tasks().each { folder -> empty_task(folder) }
    def finished = own_tasks().findAll { folder -> exit_text(folder) == '0' }
    def changes = finished.parallelStream().map { folder -> [folder, change_in(folder)] }.toList()
    changes.findAll { _folder, change -> change }.each { folder, change ->
        log.warn("${task_name(folder)} runs again: ${change}")
        set_aside(folder)
    }
    // A scheduler's tasks are told by their status, and these folders may be used again.
    own_tasks().findAll { folder -> !(exit_text(folder) in [null, '0']) }.each { folder -> set_aside(folder) }
}

// The folders of this session's tasks; only they can be taken up.
def own_tasks() {
    def mine = "session ${workflow.sessionId}"
    names(workflow.workDir)
        .findAll { name -> name ==~ /[0-9a-f]{2}/ }
        .collectMany { name -> names(workflow.workDir.resolve(name)).collect { rest -> workflow.workDir.resolve(name).resolve(rest) } }
        .findAll { folder -> notes_of(folder)[0] == mine }
}

// One that was set aside before is known to Nextflow, which goes round it.
def unfinished_tasks() {
    own_tasks().findAll { folder -> exit_text(folder) == null && !unusable(folder).exists() }
}

def unusable(folder) {
    folder.resolve('.exitcode.unusable')
}

def names(folder) {
    java.nio.file.Files.isDirectory(folder) ? folder.list().toList().sort() : []
}

def notes_of(folder) {
    def notes = folder.resolve('.linumpy_files')
    notes.exists() ? notes.text.readLines() : []
}

def exit_text(folder) {
    def status = folder.resolve('.exitcode')
    status.exists() ? status.text.trim() ?: null : null
}

// What Nextflow calls the task of a folder: its script's second line says so.
def task_name(folder) {
    def script = folder.resolve('.command.run')
    def match = (script.exists() ? script.text : '') =~ /(?m)^### name: '(.*)'$/
    "${match.find() ? match.group(1) : 'a task'} in ${folder}"
}

// Until nobody holds the task's lock. Its result counts, should it come to one.
def wait_for(folder) {
    def lock = folder.resolve('.linumpy_lock').toString()
    def free = run_command(['flock', '-n', lock, 'true']).status
    if (free == 1) {
        log.warn("${task_name(folder)}: is still at work for a launch that was killed; waiting for it to end")
        run_command(['flock', lock, 'true'])
    }
}

// Nextflow may put a new task into this folder, which is to be empty; or it knows it for one that
// failed, and looks for a later attempt as long as it is there.
def empty_task(folder) {
    def aside = folder.resolveSibling(".${folder.name}")
    java.nio.file.Files.move(folder, aside, java.nio.file.StandardCopyOption.ATOMIC_MOVE)
    folder.mkdirs()
    if (!aside.deleteDir()) {
        log.warn("${aside}: left by a launch that was killed, cannot be removed")
    }
}

// Without a status a task did not finish.
def set_aside(folder) {
    java.nio.file.Files.deleteIfExists(folder.resolve('.command.begin'))
    java.nio.file.Files.move(
        folder.resolve('.exitcode'),
        unusable(folder),
        java.nio.file.StandardCopyOption.REPLACE_EXISTING,
    )
}

// How a finished task's files differ from those that it left, in words; null where they do not.
def change_in(folder) {
    def notes = notes_of(folder)
    if (notes[-1] != 'end') {
        return 'it noted no end'
    }
    def listed = notes.subList(1, notes.size() - 1)
    def strange = listed.find { line -> !(line ==~ /\d+ \d+(\.\d+)? \.\/.+/) }
    if (strange != null) {
        return "its list of files holds a line that is none: ${strange}"
    }
    def left = listed.collectEntries { line ->
        def parts = line.split(' ', 3)
        [parts[2].substring(2), parts.take(2)]
    }
    def found = files_below(folder, folder)
    def missing = left.keySet().find { name -> !found.containsKey(name) }
    if (missing != null) {
        return "${missing} is missing"
    }
    def surplus = found.keySet().find { name -> !left.containsKey(name) }
    if (surplus != null) {
        return "${surplus} was added since it ended"
    }
    def changed = left.keySet().find { name -> left[name][0] != found[name].size().toString() || !same_time(left[name][1], found[name]) }
    changed == null ? null : "${changed} was changed since it ended"
}

// Regular files by their name below a root, with size and time. Staged inputs are links, and hidden
// ones are not the task's.
def files_below(root, folder) {
    names(folder).inject([:]) { found, name ->
        def path = folder.resolve(name)
        def seen = java.nio.file.Files.readAttributes(
            path, java.nio.file.attribute.BasicFileAttributes, java.nio.file.LinkOption.NOFOLLOW_LINKS
        )
        if (folder == root && name.startsWith('.')) {
            return found
        }
        if (seen.directory) {
            found.putAll(files_below(root, path))
        }
        else if (seen.regularFile) {
            found[root.relativize(path).toString()] = seen
        }
        found
    }
}

// Whether a time that was noted in seconds, with or without a fraction, is the file's.
def same_time(text, seen) {
    def moment = seen.lastModifiedTime().toMillis()
    def digits = text.contains('.') ? text.replace('.', '').padRight(13, '0').take(13) : text
    digits.toLong() == (text.contains('.') ? moment : Math.floorDiv(moment, 1000))
}
