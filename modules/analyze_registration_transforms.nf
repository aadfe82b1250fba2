// How registered slices turn and drift through the brain: to look at.

process analyze_registration_transforms {
    tag 'all slices'
    label 'light'

    input:
    path registration, stageAs: 'register_slices.json'
    stdin

    output:
    path 'diagnostics/*', emit: diagnostics
    tuple val("${task.process}"), val('all slices'), env('SECONDS'), emit: time

    script:
    """
    linum_analyze_registration_transforms.py register_slices.json \\
        diagnostics/registration_transforms.json \\
        --picture diagnostics/registration_transforms.png \\
        --params -
    """

    stub:
    """
    mkdir diagnostics
    touch diagnostics/registration_transforms.json diagnostics/registration_transforms.png
    """
}
