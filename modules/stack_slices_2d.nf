// The pictures of all slices in one volume, a plane a slicing interval.

include { gpu_flags } from './local/script'

process stack_slices_2d {
    tag "${subject}"
    label 'brain'
    label 'gpu'

    input:
    val subject
    path slices, stageAs: 'slices_2d/*'
    path shifts, stageAs: 'shifts_xy.csv'
    path config, stageAs: 'slice_config.csv'
    stdin

    output:
    path "${subject}_2d.ome.zarr", emit: brain
    path 'models/*.json', emit: models
    path "previews/${subject}_2d.png", emit: preview
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    """
    linum_stack_slices_2d.py slices_2d ${subject}_2d.ome.zarr \\
        --xy_shifts shifts_xy.csv \\
        --slice_config slice_config.csv \\
        --output_model models/register_slices.json \\
        --preview previews/${subject}_2d.png \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p ${subject}_2d.ome.zarr models previews
    touch models/register_slices.json previews/${subject}_2d.png
    """
}
