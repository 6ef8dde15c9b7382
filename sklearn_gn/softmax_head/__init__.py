"""FGNSoftmaxHead: many-class softmax regression by fast Gauss-Newton."""
