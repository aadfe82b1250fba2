// The brain in the space of an atlas, with the transform that leads there.
//
// Takes the brain, the atlas as a file, and its parameters on standard input.

include { gpu_flags; gpus_flag } from './local/script'

process align_to_ras {
    tag "${subject}"
    label 'brain'
    label 'gpu'

    input:
    val subject
    path brain
    path atlas
    stdin

    output:
    path "${subject}_ras.ome.zarr", emit: brain, optional: true
    path "${subject}_ras_transform.tfm", emit: transform, optional: true
    path 'models/*', emit: models, optional: true
    path "previews/${subject}_ras.png", emit: preview, optional: true
    tuple val("${task.process}"), val("${subject}"), env('SECONDS'), emit: time

    script:
    def preview = params.allen_preview || params.ras_orientation_preview
    def flags = [
        preview ? "--preview previews/${subject}_ras.png" : '',
        params.ras_store_transform_only ? '--store_transform_only' : '',
        params.ras_orientation_preview ? '--orientation_preview_only' : '',
    ].join(' ')
    """
    linum_align_to_ras.py ${brain} ${subject}_ras.ome.zarr \\
        --atlas ${atlas} \\
        --output_model models/align_to_ras.json \\
        --output_transform ${subject}_ras_transform.tfm \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)} ${gpus_flag(params.use_gpu, params.gpu_count, task)} ${flags}
    """

    stub:
    """
    mkdir -p ${subject}_ras.ome.zarr models previews
    touch ${subject}_ras_transform.tfm models/align_to_ras.json previews/${subject}_ras.png
    """
}
