// The brain without slow changes of brightness, under the same name.
//
// Runs where correct_bias_field is true.

include { gpu_flags; gpus_flag } from './local/script'

process correct_bias_field {
    tag "${subject}"
    label 'brain'
    label 'gpu'

    input:
    val subject
    path brain, stageAs: 'stacked/*'
    path stack_model, stageAs: 'stack_slices_motor.json'
    stdin

    output:
    path "${subject}.ome.zarr", emit: brain
    path 'models/*', emit: models
    path "previews/${subject}.png", emit: preview
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    """
    linum_correct_bias_field.py stacked/*.ome.zarr ${subject}.ome.zarr \\
        --stack_model stack_slices_motor.json \\
        --output_model models/correct_bias_field.json \\
        --preview previews/${subject}.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${gpus_flag(params.use_gpu, params.gpu_count, task)}
    """

    stub:
    """
    mkdir -p ${subject}.ome.zarr models previews
    touch models/correct_bias_field.json models/correct_bias_field.npz previews/${subject}.png
    """
}
