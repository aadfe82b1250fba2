// The output folder belongs to one launch at a time, and nothing finished is replaced unasked.

include { brain_name } from './output'
include { run_command } from './records'

// Open the output folder for this launch, and return what release_output takes. The system lets go
// of the lock when this process ends, however it ends. The lock's file tells the session to resume:
// by itself -resume takes up the last launch, be it one that was refused.
def claim_output(given, subject) {
    def folder = file(given.output.toString(), glob: false)
    folder.mkdirs()
    if (!folder.isDirectory()) {
        error("--output ${folder}: cannot be made; expected a folder, or a place for one")
    }
    def lock_file = folder.resolve('.linumpy.lock')
    def opened = java.nio.channels.FileChannel.open(
        lock_file,
        java.nio.file.StandardOpenOption.CREATE,
        java.nio.file.StandardOpenOption.READ,
        java.nio.file.StandardOpenOption.WRITE,
    )
    def ours = try_lock(opened)
    if (ours == false) {
        error("--output ${folder}: another run is writing there; wait for it, or name another folder")
    }
    refuse_other_machine(folder, ours == null)
    def brain = folder.resolve(brain_name(given, subject))
    if (brain.exists() && !workflow.resume && !given.overwrite) {
        error("${brain}: exists already; continue that run with -resume ${lock_file.text.trim()}, replace it with --overwrite, or name another --output")
    }
    opened.truncate(0)
    opened.write(java.nio.ByteBuffer.wrap("${workflow.sessionId}\n".getBytes('UTF-8')))
    [opened: opened, beat: begin_beat(folder)]
}

def release_output(claim) {
    claim.beat.shutdownNow()
    java.nio.file.Files.deleteIfExists(beat_file(file(params.output.toString(), glob: false)))
    claim.opened.close()
}

// Whether this launch has the lock; null where the file system knows no locks.
def try_lock(opened) {
    try {
        return opened.tryLock() != null
    }
    catch (IOException problem) {
        log.warn("--output ${params.output}: its file system has no locks (${problem.message}); a launch from elsewhere is noticed within ${beat_s()} s only")
        return null
    }
}

// Locks of some shared file systems hold on one machine only. So each launch writes a file again and
// again, which tells those on other machines that it lives.
def beat_s() {
    15
}

def beat_file(folder) {
    folder.resolve('.linumpy.alive')
}

def begin_beat(folder) {
    def path = beat_file(folder)
    def mine = "${this_machine()} session ${workflow.sessionId} started ${workflow.start}\n".toString()
    path.text = mine
    def beat = java.util.concurrent.Executors.newSingleThreadScheduledExecutor { work ->
        def thread = new Thread(work)
        thread.daemon = true
        thread
    }
    beat.scheduleWithFixedDelay({ keep_beat(path, mine) } as Runnable, beat_s(), beat_s(), java.util.concurrent.TimeUnit.SECONDS)
    beat
}

def keep_beat(path, mine) {
    try {
        if (path.exists() && path.text != mine) {
            log.error("--output ${params.output}: a run on ${path.text.tokenize(' ')[0]} writes there too; this one stops")
            nextflow.Global.session.abort(new IllegalStateException('two runs write to one output folder'))
            return
        }
        path.text = mine
    }
    catch (IOException problem) {
        log.debug("${path}: ${problem}")
    }
}

// The machine's name, then what no other has; containers of one machine share its locks.
def this_machine() {
    def boot = java.nio.file.Path.of('/proc/sys/kernel/random/boot_id')
    "${run_command(['uname', '-n']).text} ${boot.exists() ? boot.text.trim() : 'unknown'}"
}

// Times are compared by the clock of the folder's own machine.
def refuse_other_machine(folder, any_machine) {
    def path = beat_file(folder)
    if (!path.exists() || !any_machine && path.text.startsWith(this_machine())) {
        return
    }
    def probe = java.nio.file.Files.createTempFile(folder, '.linumpy.', '.now')
    def age_s = Math.floorDiv(probe.lastModified() - path.lastModified(), 1000)
    java.nio.file.Files.delete(probe)
    if (age_s < 4 * beat_s()) {
        error("--output ${folder}: a run on ${path.text.tokenize(' ')[0]} was writing there ${age_s} s ago; wait for it, or name another folder. If that run was killed, try again in ${4 * beat_s() - age_s} s")
    }
}
