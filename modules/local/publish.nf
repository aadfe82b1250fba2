// Results on their way to the output folder. Nextflow lays a link to each into <output>/.publish
// (conf/publish.config). What a link names is written aside, under a hidden name, and renamed into
// its place while the run goes on; at its end every place is held against its source once more. What
// is there already and the same is left alone.

// Files up to this size are compared by what is in them, and not by size and time alone.
def small_bytes() {
    1 << 20
}

def begin_publishing(given) {
    def output = file(given.output.toString(), glob: false)
    def links = output.resolve('.publish')
    links.deleteDir()
    remove_leftovers(output, 3)
    def state = [
        output: output,
        links: links,
        mode: given.publish_mode,
        taken: new java.util.concurrent.ConcurrentHashMap(),
        clock: java.util.concurrent.Executors.newSingleThreadScheduledExecutor { work -> idle_thread(work) },
        workers: java.util.concurrent.Executors.newFixedThreadPool(4) { work -> idle_thread(work) },
    ]
    state.clock.scheduleWithFixedDelay({ take_up(state) } as Runnable, 1, 1, java.util.concurrent.TimeUnit.SECONDS)
    state
}

// A thread that keeps nobody from ending.
def idle_thread(work) {
    def thread = new Thread(work)
    thread.daemon = true
    thread
}

// Publish what is left, and return what is wrong with the places of all results: one line each.
def end_publishing(state) {
    try {
        finish_thread(state.clock)
        if (nextflow.Global.session.aborted) {
            // Somebody wants to leave, or all is lost anyway. -resume does the rest.
            state.workers.shutdownNow()
            return []
        }
        take_up(state)
        finish_thread(state.workers)
        settle(state, state.links)
        def problems = links_in(state.links)
            .collect { link -> mended(place_of(state, link), link, state.mode) }
            .findAll { problem -> problem }
        state.links.deleteDir()
        return problems
    }
    catch (Exception problem) {
        return ["${state.output}: cannot be published to (${problem.class.simpleName}: ${problem.message})"]
    }
}

def finish_thread(thread) {
    thread.shutdown()
    thread.awaitTermination(3650, java.util.concurrent.TimeUnit.DAYS)
}

// Hand links that are new to the workers. A place may be linked anew, by a later task.
def take_up(state) {
    try {
        links_in(state.links)
            .collect { link -> [link, java.nio.file.Files.readSymbolicLink(link)] }
            .findAll { link, source -> state.taken.put(link, source) != source }
            .each { link, source ->
                state.workers.submit({ published(place_of(state, link), source, state.mode) } as Runnable)
            }
    }
    catch (IOException problem) {
        // A link was just being replaced: the next time will see it.
        log.debug("not published yet: ${problem}")
    }
}

// Publish while the run goes on. The end of the run tries again what fails here, and counts.
def published(place, source, mode) {
    def problem = mended(place, source, mode)
    if (problem) {
        log.warn(problem)
    }
}

// From a work folder on an object store Nextflow brings files, not links.
def settle(state, folder) {
    (folder.exists() ? entries(folder) : [])
        .findAll { path -> !java.nio.file.Files.isSymbolicLink(path) }
        .each { path ->
            if (path.isDirectory() && !path.name.endsWith('.zarr')) {
                settle(state, path)
            }
            else {
                take_place(path, place_of(state, path))
            }
        }
}

// Links at any depth.
def links_in(folder) {
    if (!java.nio.file.Files.isDirectory(folder, java.nio.file.LinkOption.NOFOLLOW_LINKS)) {
        return []
    }
    entries(folder).collectMany { path ->
        java.nio.file.Files.isDirectory(path, java.nio.file.LinkOption.NOFOLLOW_LINKS) ? links_in(path) : [path]
    }.findAll { path -> java.nio.file.Files.isSymbolicLink(path) }
}

def entries(folder) {
    folder.list().toList().sort().collect { name -> folder.resolve(name) }
}

def place_of(state, link) {
    state.output.resolve(state.links.relativize(link).toString())
}

// See to it that a place holds what a link leads to; what stays wrong, or null.
def mended(place, link, mode) {
    try {
        def source = link.toRealPath()
        if (difference(place, source, mode)) {
            put(place, source, mode)
            def left = difference(place, source, mode)
            return left ? "${place}: is not what ${source} is, though it was just published: ${left}" : null
        }
        return null
    }
    catch (Exception problem) {
        discard(aside_of(place))
        return "${place}: cannot be published from ${link} (${problem.class.simpleName}: ${problem.message})"
    }
}

// How a place differs from its source, in words; null where it does not.
def difference(place, source, mode) {
    if (mode in ['symlink', 'rellink']) {
        def leads = java.nio.file.Files.isSymbolicLink(place) && place.exists()
        return leads && java.nio.file.Files.isSameFile(place, source) ? null : 'no link to it'
    }
    if (java.nio.file.Files.isSymbolicLink(place) || !place.exists()) {
        return 'missing'
    }
    def wanted = tree(source)
    def found = tree(place)
    def strange = found.keySet().find { name -> !wanted.containsKey(name) }
    if (strange != null) {
        return "${strange} is no part of it"
    }
    def changed = wanted.keySet().find { name ->
        !found.containsKey(name) || !same_file(place.resolve(name), source.resolve(name), found[name], wanted[name], mode)
    }
    changed == null ? null : "${changed ?: place.name} is missing or differs"
}

// All files of a folder by name, or one file under the name ''. Folders have a null, so that empty
// ones count too.
def tree(root) {
    java.nio.file.Files.walk(root, java.nio.file.FileVisitOption.FOLLOW_LINKS).withCloseable { walk ->
        walk.toList().collectEntries { path ->
            def seen = java.nio.file.Files.readAttributes(path, java.nio.file.attribute.BasicFileAttributes)
            [root.relativize(path).toString(), seen.directory ? null : seen]
        }
    }
}

def same_file(path, source, found, wanted, mode) {
    if (found == null || wanted == null) {
        return found == null && wanted == null
    }
    if (mode == 'link') {
        return java.nio.file.Files.isSameFile(path, source)
    }
    found.size() == wanted.size() &&
        // Some file systems keep even seconds only.
        Math.abs(found.lastModifiedTime().toMillis() - wanted.lastModifiedTime().toMillis()) < 2000 &&
        (wanted.size() > small_bytes() || java.nio.file.Files.mismatch(path, source) == -1)
}

// Put a source into its place: aside first, then by a rename.
def put(place, source, mode) {
    java.nio.file.Files.createDirectories(place.parent)
    def aside = aside_of(place)
    remove(aside)
    if (mode == 'symlink') {
        java.nio.file.Files.createSymbolicLink(aside, source)
    }
    else if (mode == 'rellink') {
        java.nio.file.Files.createSymbolicLink(aside, place.parent.toRealPath().relativize(source))
    }
    else {
        copy_tree(source, aside, mode)
    }
    take_place(aside, place)
}

// Rename what is whole to what it is to be called.
def take_place(aside, place) {
    java.nio.file.Files.createDirectories(place.parent)
    def replaced = place.resolveSibling(".${place.name}.replaced")
    remove(replaced)
    if (java.nio.file.Files.isDirectory(place, java.nio.file.LinkOption.NOFOLLOW_LINKS)) {
        // A folder takes no other's place by a rename.
        java.nio.file.Files.move(place, replaced, java.nio.file.StandardCopyOption.ATOMIC_MOVE)
    }
    java.nio.file.Files.move(aside, place, java.nio.file.StandardCopyOption.ATOMIC_MOVE)
    synced(place.parent)
    remove(replaced)
}

// Copies keep the time of their source: that is how they are known as copies the next time.
def copy_tree(source, target, mode) {
    tree(source).each { name, seen ->
        def path = name ? target.resolve(name) : target
        def from = name ? source.resolve(name) : source
        if (seen == null) {
            java.nio.file.Files.createDirectories(path)
        }
        else if (mode == 'link') {
            java.nio.file.Files.createLink(path, from)
        }
        else {
            java.nio.file.Files.copy(from, path)
            java.nio.file.Files.setLastModifiedTime(path, seen.lastModifiedTime())
            synced(path)
        }
    }
}

// Have the disk hold what was written to a file or folder.
def synced(path) {
    java.nio.channels.FileChannel.open(path, java.nio.file.StandardOpenOption.READ).withCloseable { opened ->
        opened.force(true)
    }
}

def aside_of(place) {
    place.resolveSibling(".${place.name}.publishing")
}

// Remove what is in nobody's way; the next launch does it where it does not work.
def discard(path) {
    try {
        remove(path)
    }
    catch (IOException problem) {
        log.debug("${path}: ${problem}")
    }
}

def remove(path) {
    if (java.nio.file.Files.isDirectory(path, java.nio.file.LinkOption.NOFOLLOW_LINKS)) {
        entries(path).each { inside -> remove(inside) }
    }
    java.nio.file.Files.deleteIfExists(path)
}

// What a launch that was killed had not finished writing. No place lies deeper than three names, and
// none within a volume.
def remove_leftovers(folder, depth) {
    entries(folder).each { path ->
        if (path.name ==~ /\..+\.(publishing|replaced)/) {
            remove(path)
        }
        else if (depth > 1 && !(path.name ==~ /\..*|.*\.zarr/) && java.nio.file.Files.isDirectory(path, java.nio.file.LinkOption.NOFOLLOW_LINKS)) {
            remove_leftovers(path, depth - 1)
        }
    }
}
