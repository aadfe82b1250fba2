// What the scripts of processes are made of.

// What a task on slices is called.
def slice_tag(ids) {
    ids.size() > 1 ? "z${ids[0]}-z${ids[-1]}" : "z${ids[0]}"
}

// A text for each slice, with its name in place of ID.
def of_each(ids, text) {
    ids.collect { slice_id -> text.replace('ID', "z${slice_id}") }.join(' ')
}

// What linum_reconstruct_slice.py reads and makes: one slice by names, several as a folder.
def slice_flags(slice_ids, grids, raw, acquisition, task) {
    def ids = slice_ids.join(' ')
    def one = "slices/slice_ID.ome.zarr --output_models models/ID --aip aips/aip_ID.png --preview previews/slice_ID.png"
    def flags = slice_ids.size() == 1
        ? [raw ? "--from_root_directory raw -z ${ids} ${acquisition}" : grids, of_each(slice_ids, one)]
        : [
            '. --keep_going',
            task.attempt > 1 ? '--take_over --overlap 1' : '',
            raw ? "--from_root_directory raw ${acquisition} --slices ${ids}" : "--grids ${grids.join(' ')}",
        ]
    flags.findAll { flag -> flag }.join(' ')
}

// The flags of scripts that compute on voxels. The schema's pattern lets no more through than a size.
// A task that is tried again has a device for itself, and takes half the batches there, whatever stopped
// it before. One that a scheduler gave a device has it for itself, too.
def gpu_flags(use_gpu, gpu_memory, task) {
    if (!use_gpu) {
        return '--no-use_gpu'
    }
    [
        '--use_gpu',
        gpu_memory == null ? '' : "--gpu_memory ${gpu_memory}",
        "--gpu_tasks ${task.attempt > 1 || task.executor != 'local' ? 1 : task.ext.gpu_tasks}",
        task.attempt > 1 ? "--gpu_batch ${0.5 ** (task.attempt - 1)}" : '',
    ].findAll { flag -> flag }.join(' ')
}

// The GPUs of scripts with a process or more on each: all of this machine that the run may use. A scheduler
// gives each task one.
def gpus_flag(use_gpu, gpu_count, task) {
    use_gpu && gpu_count > 1 && task.executor == 'local' ? "--gpu_count ${gpu_count}" : ''
}

// The flags of scripts that read raw tiles.
def acquisition_flags(fix_galvo_shift, galvo_confidence_threshold, stage_to_array, axial_resolution, slicing_interval_mm) {
    [
        fix_galvo_shift ? '--fix_galvo_shift' : '--no-fix_galvo_shift',
        "--galvo_threshold ${galvo_confidence_threshold}",
        "--stage_to_array=${stage_to_array}",
        axial_resolution == null ? '' : "--axial_resolution ${axial_resolution}",
        slicing_interval_mm == null ? '' : "--slicing_interval ${1000 * slicing_interval_mm}",
    ].findAll { flag -> flag }.join(' ')
}

// Shell lines that lay out inputs, staged under their numbers, like the output folder: a file at its place,
// of a folder the files whose places are listed.
def lay_out(folder, places) {
    def links = places.withIndex().collect { own, index ->
        def item = "\"\$PWD\"/staged/${index + 1}/item"
        if (!(own instanceof List)) {
            return "ln -s ${item} ${folder}/${own}"
        }
        def names = own.collect { place -> place.tokenize('/')[-1] }
        "ln -s ${item}/{${names.join(',')}} ${parent("${folder}/${own[0]}")}"
    }
    def parents = places.collect { own -> parent("${folder}/${own instanceof List ? own[0] : own}") }.unique()
    (["mkdir -p ${folder} ${parents.join(' ')}"] + links).join('\n    ')
}

def parent(place) {
    place.substring(0, place.lastIndexOf('/'))
}
