// The brain stacked where the motors put its slices: to look at beside the registered one.

include { gpu_flags; gpus_flag } from './local/script'

process stack_motor_only {
    tag "${subject}"
    label 'brain'
    label 'gpu'

    input:
    val subject
    path slices, stageAs: 'slices/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    stdin

    output:
    path "diagnostics/${subject}_motor_only.ome.zarr", emit: brain
    path "diagnostics/${subject}_motor_only.png", emit: preview
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    """
    linum_stack_motor_only.py slices shifts_xy.csv diagnostics/${subject}_motor_only.ome.zarr \\
        --slice_config slice_config.csv \\
        --preview diagnostics/${subject}_motor_only.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${gpus_flag(params.use_gpu, params.gpu_count, task)}
    """

    stub:
    """
    mkdir -p diagnostics/${subject}_motor_only.ome.zarr
    touch diagnostics/${subject}_motor_only.png
    """
}
