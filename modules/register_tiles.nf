// Chained mode: where each tile lies, from what it shares with its neighbours.
//
// Tiles that hold no tissue stay where the stage put them.

include { gpu_flags } from './local/script'

process register_tiles {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(grid)
    path models, stageAs: 'learned/*'

    output:
    tuple val(slice_id), path("models/z${slice_id}/register_tiles.json"), emit: positions
    path "models/z${slice_id}/*_metrics.json", emit: metrics, optional: true
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_register_tiles.py ${grid} models/z${slice_id}/register_tiles.json \\
        --models learned \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p models/z${slice_id}
    touch models/z${slice_id}/register_tiles.json
    """
}
