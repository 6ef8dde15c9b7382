"""Colours of the gallery's pictures, which colour-blind readers can tell apart."""


def use(gallery_conf, path):
    """Set the colour cycle before an example runs.

    Parameters
    ----------
    gallery_conf : dict
        Configuration of the gallery.
    path : str
        The example.
    """
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")
